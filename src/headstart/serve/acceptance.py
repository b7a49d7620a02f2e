"""What speculation did for one request, in the shape of vLLM's ``metrics.speculative_decoding``.

Source: vLLM 0.33, ``docs/features/speculative_decoding/acceptance_metrics.md``. Two conventions to know when numbers of
the two are compared: a step without a draft is in none of the fields, as there, so ``mean_acceptance_length`` says how
long a *drafted* step was; and tokens behind a stop are not counted as accepted here, while vLLM counts them.
"""

from __future__ import annotations

from headstart.decode.record import SpecRecord
from headstart.serve.replies import SpeculativeDecoding


def speculative_decoding(record: SpecRecord, depth: int) -> SpeculativeDecoding:
    """The block for one sequence whose drafts were allowed to reach ``depth``.

    The histogram's entry ``j`` counts the drafted rounds that accepted exactly ``j`` tokens; ``accepted_at[i]`` of the
    record counts those that accepted more than ``i``.
    """
    depth = max(depth, len(record.drafted_at))
    at_least = [record.drafted_rounds, *record.accepted_at]
    at_least += [0] * (depth + 2 - len(at_least))
    steps = record.drafted_rounds
    return SpeculativeDecoding(
        mean_acceptance_length=1 + record.accepted / steps if steps else 1.0,
        draft_acceptance_rate=record.accepted / record.drafted if record.drafted else 0.0,
        acceptance_histogram=[at_least[j] - at_least[j + 1] for j in range(depth + 1)],
        num_spec_steps=steps,
        num_accepted_draft_tokens=record.accepted,
        num_draft_tokens=record.drafted,
        num_spec_tokens=depth,
    )
