"""Planning: the logical plan of a topology, its physical plan, and the explanation of both.

- Plans: `logical`, `physical`, `streams`, `hosts`, `assignment`, `data_path`.
- From the logical to the physical plan: `planner`, `fusion`, `placement`, `rings`, `memory`,
  `requests`, `custom_transports`, `unions`, `rescaling`.
- Rewrites: `late_merge`, `column_pruning`.
- Checks: `preflight`, `columns`, `lateness`, `side_inputs`.
- Explanation: `explain`, `explain_pipelines`, `explain_checkpoints`, `explanation`, `diagram`,
  `units`.
"""
