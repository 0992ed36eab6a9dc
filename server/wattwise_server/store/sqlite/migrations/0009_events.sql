-- What happened to a job in order, so that its search can be rebuilt; and what a person has changed about the job.
ALTER TABLE jobs ADD COLUMN num_events INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN first_notes TEXT NOT NULL DEFAULT '';  -- '': they do not depend on other jobs
ALTER TABLE jobs ADD COLUMN changed_policy TEXT;                    -- NULL: `policy`, which it was registered with
ALTER TABLE jobs ADD COLUMN changed_parameters TEXT;                -- JSON, of `changed_policy`
ALTER TABLE jobs ADD COLUMN reset_after INTEGER NOT NULL DEFAULT 0; -- trials up to this number do not count
ALTER TABLE jobs ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN pinned INTEGER;                         -- a batch size
ALTER TABLE jobs ADD COLUMN baseline_requested INTEGER NOT NULL DEFAULT 0;
ALTER TABLE arms ADD COLUMN banned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE trials ADD COLUMN excluded INTEGER NOT NULL DEFAULT 0;
ALTER TABLE trials ADD COLUMN dispatch_event INTEGER NOT NULL DEFAULT 0;  -- its number among the job's events
ALTER TABLE trials ADD COLUMN end_event INTEGER;                          -- NULL: running

-- The events that the trials do not tell: bans, and what came before the newest end of a trial that was revived.
CREATE TABLE events (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    event INTEGER NOT NULL,
    kind TEXT NOT NULL,
    batch_size INTEGER NOT NULL,
    trial_number INTEGER,                   -- NULL: about the batch size; the rest is of the trial at that time
    policy_role TEXT,
    end_reason TEXT,
    cost REAL,
    last_epoch INTEGER,
    last_time_seconds REAL,
    last_energy_joules REAL,
    last_metric REAL,                       -- NULL beside an epoch: NaN
    last_report_time INTEGER,
    PRIMARY KEY (job_key, event)
) WITHOUT ROWID;

-- Until now only times were kept, and nothing about revivals.
CREATE TEMP TABLE numbered AS
SELECT job_key, trial_number, ends, row_number() OVER (PARTITION BY job_key ORDER BY time, trial_number, ends) AS event
FROM (SELECT job_key, trial_number, 0 AS ends, start_time AS time FROM trials
      UNION ALL
      SELECT job_key, trial_number, 1, max(start_time, coalesce(end_time, start_time)) FROM trials
      WHERE status != 'RUNNING');
CREATE INDEX temp.numbered_by_trial ON numbered (job_key, trial_number, ends);
UPDATE trials SET
    dispatch_event = (SELECT event FROM numbered n
                      WHERE (n.job_key, n.trial_number, n.ends) = (trials.job_key, trials.trial_number, 0)),
    end_event = (SELECT event FROM numbered n
                 WHERE (n.job_key, n.trial_number, n.ends) = (trials.job_key, trials.trial_number, 1));
UPDATE jobs SET num_events = (SELECT count(*) FROM numbered n WHERE n.job_key = jobs.job_key);
DROP TABLE numbered;
