// What the rounds of one answer add up to. Pure: rounds and moments in, numbers out. Same definitions as the engine's.

export class Tally {
  /** `now`: when the request was sent, in ms. */
  constructor(now) {
    this.sent = now;
    this.first = null; // when the first token came, in ms
    this.last = null; // when the last tokens came, in ms
    this.opening = 0; // tokens that came with the first
    this.tokens = 0;
    this.rounds = []; // {depth, accepted}
    this.emitted = 0; // tokens that rounds gave: all but the first
    this.drafted = 0;
    this.accepted = 0;
    this.draftedAt = []; // rounds whose draft reached position i + 1
    this.acceptedAt = [];
  }

  /** Counts the rounds of one chunk that came at `now`, in ms. */
  add(rounds, now) {
    const before = this.tokens;
    for (const round of rounds) {
      this.tokens += round.pieces.length;
      if (round.depth === null) continue;
      this.rounds.push({ depth: round.depth, accepted: round.accepted });
      this.emitted += round.pieces.length;
      this.drafted += round.drafted;
      this.accepted += round.accepted;
      raise(this.draftedAt, round.deepest, round.deepest);
      raise(this.acceptedAt, round.accepted, round.deepest);
    }
    if (this.tokens === before) return;
    this.last = now;
    if (this.first === null) {
      this.first = now;
      this.opening = this.tokens;
    }
  }

  /** ms from sending to the first token; null before it. */
  get ttft() {
    return this.first === null ? null : this.first - this.sent;
  }

  /** Tokens per second after the first; null before there are two moments to compare. */
  get speed() {
    return this.last > this.first ? (1000 * (this.tokens - this.opening)) / (this.last - this.first) : null;
  }

  /** Tokens per round, rounds without a draft included; null before the first round. */
  get meanLength() {
    return this.rounds.length ? this.emitted / this.rounds.length : null;
  }

  /** Accepted over drafted tokens; null when nothing was drafted. */
  get rate() {
    return this.drafted ? this.accepted / this.drafted : null;
  }

  /** Of the rounds that drafted to position i + 1, the share that accepted so far. */
  get byPosition() {
    return this.draftedAt.map((drafted, i) => this.acceptedAt[i] / drafted);
  }
}

function raise(counts, upTo, length) {
  while (counts.length < length) counts.push(0);
  for (let i = 0; i < upTo; i++) counts[i] += 1;
}

/** What two answers to one prompt and seed say about each other: `{identical, at, ratio}`. `at` is the first character
 * that differs, `ratio` the first's speed over the second's, null if one has none. */
export function compare(one, other) {
  const ratio = one.tally.speed && other.tally.speed ? one.tally.speed / other.tally.speed : null;
  const identical = one.text === other.text;
  let at = 0;
  while (!identical && at < one.text.length && one.text[at] === other.text[at]) at += 1;
  return { identical, at: identical ? null : at, ratio };
}
