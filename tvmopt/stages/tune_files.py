"""Names of the files in the output of the tune stage."""

ALTERNATIVES_FILE = "alternatives.csv"
DATABASE_DIR = "database"
LOG_FILE = "tuning_log.jsonl"
#: Tile that each weight is packed for, of every size.
PACKING_FILE = "packing.json"
PLAN_FILE = "plan.json"
#: Stage of the run of a tune stage that was killed; its artifacts are the records until then.
KILLED_STAGE = "tune-killed"
REGRET_FILE = "regret.csv"
TASKS_FILE = "tasks.csv"
