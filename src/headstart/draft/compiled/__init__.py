"""The n-gram drafter's parts in C: the same drafts, to the bit, in a tenth of the time."""
