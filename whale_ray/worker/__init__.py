"""A worker: its loop over tasks and rings, and the doorbells on which it sleeps.

- The loop: `worker`, `worker_counters`, `stage_meter`, `staged_output`.
- Memory shared with others: `rings`, `boards`, `offers`; users' transports: `custom_transports`,
  `transport_operators`.
- Checkpoints: `worker_checkpoints`, `worker_epochs`, `snapshot_writer`, `kept_snapshots`,
  `restored_snapshots`.
- Commands of the controller: `limit_slices`.
"""
