"""Processes with declared state: one logical instance per key.

- What users derive from: `keyed_process`; handles: `handles`, `entries`, `expiry`.
- Store and timers of a worker: `keyed_state`, `stored_parts`, `timer_chain`.
- Compiled rows: `translation`, `compiled_rows`, `checked_integers`, `method_names`.
- Checkpoints: `sealed_keys`, `changed_keys`, `sealed_state`, `sealed_entries`, `dumped_state`.
"""
