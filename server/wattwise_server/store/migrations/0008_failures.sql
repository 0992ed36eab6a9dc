-- A batch size's failures in a row are the numbers of its failed trials, since the pauses between tries depend on them.
ALTER TABLE jobs ADD COLUMN bound_stops INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN prior_job_ids TEXT NOT NULL DEFAULT '[]';
ALTER TABLE trials ADD COLUMN best_known INTEGER NOT NULL DEFAULT 0;

-- DROP COLUMN needs SQLite 3.35; a new table needs no version.
CREATE TABLE new_arms (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    batch_size INTEGER NOT NULL,
    pruned INTEGER NOT NULL,
    excluded INTEGER NOT NULL,
    round_cost REAL,                        -- NULL: no result in this round
    num_succeeded INTEGER NOT NULL,
    num_converged INTEGER NOT NULL,
    num_failed INTEGER NOT NULL,
    failed_cost REAL NOT NULL,
    failed_trials TEXT NOT NULL,            -- JSON: the numbers of the newest, oldest first
    out_of_memory INTEGER NOT NULL,
    reached_count INTEGER NOT NULL,
    reached_mean REAL NOT NULL,
    reached_deviation REAL NOT NULL,
    missed_count INTEGER NOT NULL,
    missed_mean REAL NOT NULL,
    missed_deviation REAL NOT NULL,
    counted_count INTEGER NOT NULL,
    counted_mean REAL NOT NULL,
    counted_deviation REAL NOT NULL,
    PRIMARY KEY (job_key, batch_size)
) WITHOUT ROWID;

-- Only the number of the last failure was kept: it stands for all of them, since only the last one and how many there
-- are matter. Thirteen are kept.
INSERT INTO new_arms
SELECT job_key, batch_size, pruned, 0, round_cost, num_succeeded,
       (SELECT count(*) FROM trials t WHERE (t.job_key, t.batch_size) = (a.job_key, a.batch_size) AND t.converged),
       (SELECT count(*) FROM trials t WHERE (t.job_key, t.batch_size) = (a.job_key, a.batch_size)
           AND t.status = 'FAILED' AND t.end_reason NOT IN ('PREEMPTED', 'JOB_DELETED')),
       (SELECT coalesce(sum(t.cost), 0.0) FROM trials t WHERE (t.job_key, t.batch_size) = (a.job_key, a.batch_size)
           AND t.status = 'FAILED' AND t.end_reason NOT IN ('PREEMPTED', 'JOB_DELETED')),
       '[' || rtrim(replace(hex(zeroblob(min(failures, 13))), '00', last_failure || ','), ',') || ']',
       (SELECT count(*) FROM trials t WHERE (t.job_key, t.batch_size) = (a.job_key, a.batch_size)
           AND t.end_reason = 'OUT_OF_MEMORY' AND t.trial_number = a.last_failure AND a.failures > 0),
       reached_count, reached_mean, reached_deviation, missed_count, missed_mean, missed_deviation,
       counted_count, counted_mean, counted_deviation
FROM arms a;
DROP TABLE arms;
ALTER TABLE new_arms RENAME TO arms;
