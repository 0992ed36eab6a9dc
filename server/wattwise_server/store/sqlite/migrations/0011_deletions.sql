-- Which jobs and which of their dispatched launches were deleted, so that no trainer delivers them as new ones. A job id
-- may have been deleted several times.
CREATE TABLE deletions (
    job_id TEXT NOT NULL,
    launch_id TEXT NOT NULL,               -- '': the job itself
    create_time INTEGER NOT NULL,           -- of the job; the start of the launch
    delete_time INTEGER NOT NULL,
    PRIMARY KEY (job_id, launch_id, create_time)
) WITHOUT ROWID;
