"""Commands of `audit` beside `run`, one file each."""
