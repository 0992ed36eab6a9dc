-- Of the launch of a trial; apart, because a trial's row is written again at its end.
CREATE TABLE launches (
    job_key INTEGER NOT NULL,
    trial_number INTEGER NOT NULL,
    reason TEXT NOT NULL,
    labels TEXT NOT NULL,                       -- JSON: [[key, value], ...]; empty: none
    token_id TEXT NOT NULL,
    PRIMARY KEY (job_key, trial_number),
    FOREIGN KEY (job_key) REFERENCES jobs ON DELETE CASCADE
) WITHOUT ROWID;

-- All samples of a profile.
CREATE TABLE power_samples (
    job_key INTEGER NOT NULL,
    trial_number INTEGER NOT NULL,
    samples TEXT NOT NULL,                      -- JSON: [[watts, seconds, joules, steps], ...]
    PRIMARY KEY (job_key, trial_number),
    FOREIGN KEY (job_key) REFERENCES jobs ON DELETE CASCADE
) WITHOUT ROWID;

-- What happened to jobs, for people. It outlives the jobs.
CREATE TABLE history (
    entry INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    time INTEGER NOT NULL,
    kind TEXT NOT NULL,
    trial_number INTEGER NOT NULL,              -- 0: none
    batch_size INTEGER NOT NULL,                -- 0: none
    message TEXT NOT NULL,
    token_id TEXT NOT NULL
);
CREATE INDEX history_by_job ON history (job_id, entry);
CREATE INDEX history_by_time ON history (time);

CREATE INDEX trials_by_start ON trials (start_time, job_key, trial_number);
CREATE INDEX trials_by_end ON trials (job_key, end_time, target_reached);
CREATE INDEX trials_excluded ON trials (job_key, trial_number) WHERE excluded;
