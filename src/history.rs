//! What became of each update, and why: `/mnt/state/copal/history.jsonl`.
