"""Aggregates of a group's rows, and the state that they need.

- What users call: `functions`, which make an `aggregate`; `user_defined` for their own.
- `binding` resolves them against the columns of a stream.
- State of groups: `accumulator`, and its kinds `totals`, `moments`, `picks`, `distinct`,
  `percentiles`, `lists`, `user_accumulator`; `kernels` are the compiled loops, `loop_updates` the
  same as source text for compiled pipelines.
"""
