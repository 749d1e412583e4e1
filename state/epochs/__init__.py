"""Epochs: consistent snapshots of a running job, and what a restart resumes from.

- Protocol, pure: `aligner` for the inputs of a stage, `coordinator` for a job, with
  `coordinator_events`, `epoch_commands`, `rules` and `commit_retries`.
- Contents of a checkpoint: `manifest`, `sealed_json`.
- Store: `checkpoint_store`, `store_names`, `newest_note`, `retention`; one job at a time: `claim`,
  `claim_rules`; files: `store_files`, `local_files`, `remote_files`.
"""
