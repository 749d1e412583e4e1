"""The control plane: leads a job's workers and relays.

State machines, pure, decide; `supervisor` carries out their decisions on a `fleet`, the same for
every deployment.

- Attempts: `controller`, `controller_events`, `attempt`, `attempt_steps`, `relay_repairs`,
  `restart_policy`, `outcome`; for a controller's successor: `controller_progress`, `journal`.
- Checkpoints: `epoch_session`, `epoch_writer`, `epoch_progress`, `epoch_output`, `savepoints`;
  restoring into a changed topology: `operator_records`, `state_migration`.
- Multicast trees: `tree_controller`, `tree_session`.
- Adaptation: `adaptation`, `stage_loads`, `job_decisions`.
- Output and errors: `sink_publisher`, `outputs`, `failures`, `member_names`, `snapshots`,
  `background`.
"""
