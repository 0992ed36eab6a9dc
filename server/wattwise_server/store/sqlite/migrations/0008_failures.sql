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
    num_decided INTEGER NOT NULL,
    num_converged INTEGER NOT NULL,
    num_failed INTEGER NOT NULL,
    num_out_of_memory INTEGER NOT NULL,
    failed_cost REAL NOT NULL,
    failed_trials TEXT NOT NULL,            -- JSON: the numbers of the newest, oldest first
    out_of_memory INTEGER NOT NULL,
    cheapest REAL,                          -- NULL: none has converged
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

-- The costs that count: all of a batch size's, or the newest of a job with a window.
CREATE TEMP TABLE seen AS
SELECT job_key, batch_size, cost, converged FROM (
    SELECT job_key, batch_size, cost, converged, row_number() OVER newest AS age
    FROM trials WHERE observation IS NOT NULL
    WINDOW newest AS (PARTITION BY job_key, batch_size ORDER BY observation DESC)
) JOIN jobs USING (job_key) WHERE window_size = 0 OR age <= window_size;

CREATE TEMP TABLE sums AS
SELECT job_key, batch_size, converged, count(*) AS count, avg(cost) AS mean,
       sum((cost - mean) * (cost - mean)) AS deviation, min(CASE WHEN cost > 0 THEN cost END) AS cheapest
FROM seen JOIN (SELECT job_key, batch_size, converged, avg(cost) AS mean FROM seen GROUP BY 1, 2, 3)
     USING (job_key, batch_size, converged)
GROUP BY 1, 2, 3;

-- Only the number of the last failure was kept: it stands for all of them, since only the last one and how many there
-- are matter. Thirteen are kept. What was pruned because it ran out of memory is excluded instead.
INSERT INTO new_arms
SELECT a.job_key, a.batch_size, pruned AND NOT ran_out, pruned AND ran_out, round_cost, num_decided,
       (SELECT count(*) FROM trials t WHERE (t.job_key, t.batch_size) = (a.job_key, a.batch_size) AND t.converged),
       (SELECT count(*) FROM trials t WHERE (t.job_key, t.batch_size) = (a.job_key, a.batch_size)
           AND t.status IN ('INTERRUPTED', 'FAILED') AND t.end_reason != 'PREEMPTED'),
       (SELECT count(*) FROM trials t WHERE (t.job_key, t.batch_size) = (a.job_key, a.batch_size)
           AND t.end_reason = 'OUT_OF_MEMORY'),
       (SELECT coalesce(sum(t.cost), 0.0) FROM trials t WHERE (t.job_key, t.batch_size) = (a.job_key, a.batch_size)
           AND t.status IN ('INTERRUPTED', 'FAILED') AND t.end_reason != 'PREEMPTED'),
       '[' || rtrim(replace(hex(zeroblob(min(failures, 13))), '00', last_failure || ','), ',') || ']',
       ran_out, r.cheapest,
       CASE WHEN window_size THEN coalesce(r.count, 0) ELSE reached_count END,
       CASE WHEN window_size THEN coalesce(r.mean, 0.0) ELSE reached_mean END,
       CASE WHEN window_size THEN coalesce(r.deviation, 0.0) ELSE reached_deviation END,
       coalesce(m.count, 0), coalesce(m.mean, 0.0), coalesce(m.deviation, 0.0),
       counted_count, counted_mean, counted_deviation
FROM (SELECT *, (SELECT count(*) FROM trials t WHERE (t.job_key, t.batch_size) = (arms.job_key, arms.batch_size)
           AND t.end_reason = 'OUT_OF_MEMORY' AND t.trial_number = last_failure AND failures > 0) AS ran_out
      FROM arms) a
JOIN jobs USING (job_key)
LEFT JOIN sums r ON (r.job_key, r.batch_size, r.converged) = (a.job_key, a.batch_size, 1)
LEFT JOIN sums m ON (m.job_key, m.batch_size, m.converged) = (a.job_key, a.batch_size, 0);
DROP TABLE arms;
ALTER TABLE new_arms RENAME TO arms;
DROP TABLE seen;
DROP TABLE sums;

-- The cheapest of the batch sizes that may be chosen, above 0; missed_floor follows with the next trial that ends.
UPDATE jobs SET min_cost = NULL, min_cost_batch_size = NULL;
UPDATE jobs SET (min_cost, min_cost_batch_size) = (
    SELECT cheapest, batch_size FROM arms
    WHERE arms.job_key = jobs.job_key AND NOT pruned AND NOT excluded AND cheapest IS NOT NULL
    ORDER BY json_array_length(failed_trials) > 2, cheapest, batch_size LIMIT 1);
