-- Jobs are counted by the start of their ids, which have an index.
DROP INDEX jobs_by_prefix;
