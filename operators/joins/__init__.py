"""Joins of two streams, joins with a table, and de-duplication.

- Specifications: `join`, `equi_join`, `interval`, `asof_join`, `table_join`, `deduplication`,
  `common_keys`.
- Joins of streams: `stream_join` is their base; `join_streams` within windows and intervals,
  `session_streams`, `asof_streams`. Their rows: `kept_rows`, `key_bytes`, `spans`, `kept_spans`,
  `joined_rows`, `row_queue`, `row_log`, `row_versions`; compiled loops: `kernels`,
  `span_kernels` (called by `span_loop`), `session_kernels`, `asof_kernels`.
- Joins with a table: `broadcast_table`, `table_index`, `table_kernels`, `unique_rows`.
- De-duplication: `drop_duplicates`.
"""
