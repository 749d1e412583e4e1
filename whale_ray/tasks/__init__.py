"""Runs a stage's rows in a worker: everything between edge readers and edge writers.

A stage task is one instance of one stage: its operators are nodes, fused by plain calls. Nothing
here depends on processes, sockets or Ray.

- Tasks: `stage_task`, built by `task_builder`, `node_builder`, `writer_builder` and
  `reader_builder`.
- Operators: `nodes`, `source_node`, `process_node`, `table_join_node`, `side_input`,
  `partial_node`, `compiled_transforms`, `read_size`; what they emit: `flow`, `process_output`,
  `row_gatherer`.
- Edges: `edge_reader`, `edge_writer`, `partitioner`, `addressing`, `instance_oriented`,
  `ring_queue`, `inputs_behind`.
- Checkpoints: `stage_epochs`, `predecessors`, `process_state`.
- Output of users' functions: `capture`, `printed`.
"""
