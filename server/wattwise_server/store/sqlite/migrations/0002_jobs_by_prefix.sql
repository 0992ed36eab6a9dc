-- Counts the jobs of a prefix.
CREATE INDEX jobs_by_prefix ON jobs (job_id_prefix);
