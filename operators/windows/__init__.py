"""Windows and the operators that aggregate rows in them.

- Specifications: `durations`, `specifications`, `grouping`, `aggregation`, `top_n`, `trigger`.
- Time windows, composed of `slices`: `time_windows`, `aggregate_windows`, `top_rows`,
  `clock_windows`, `window_results`. Their groups: `group_state`, `slice_stores`, `slot_cache`,
  `slot_objects`, `value_sets`, `batch_combiner`, `loop_groups`; on the disk: `pending_groups`,
  `group_records`, `evaluated_rows`. Extents of a batch's times: `block_times`.
- Windows that depend on their rows: `row_windows`, `session_windows`, `count_windows`,
  `window_pool`, `sessions`.
- Late merge: `partial_aggregation`, `partial_windows`, `deltas`, `reduction`.
- Checkpoints: `sealed_windows`, `sealed_groups`, `sealed_pool`, `slice_versions`.
"""
