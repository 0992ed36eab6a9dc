-- Known power limits belong to the job, not to the policy's arms.
CREATE TABLE power_limits (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    batch_size INTEGER NOT NULL,
    limit_watts_per_gpu REAL,                 -- the cheapest reported sample; NULL: no report yet
    time_seconds REAL,
    energy_joules REAL,
    steps INTEGER,
    profiling INTEGER,                      -- number of the trial that profiles, for as long as it runs
    PRIMARY KEY (job_key, batch_size)
) WITHOUT ROWID;

INSERT INTO power_limits
SELECT job_key, batch_size, limit_watts_per_gpu, power_time_seconds, power_energy_joules, power_steps, profiling
FROM arms WHERE power_steps IS NOT NULL OR profiling IS NOT NULL;

-- DROP COLUMN needs SQLite 3.35; a new table needs no version.
CREATE TABLE new_arms (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    batch_size INTEGER NOT NULL,
    pruned INTEGER NOT NULL,
    round_cost REAL,                        -- NULL: no result in this round
    failures INTEGER NOT NULL,
    last_failure INTEGER NOT NULL,
    num_decided INTEGER NOT NULL,
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

INSERT INTO new_arms
SELECT job_key, batch_size, pruned, round_cost, failures, last_failure, num_decided, reached_count, reached_mean,
       reached_deviation, missed_count, missed_mean, missed_deviation, counted_count, counted_mean, counted_deviation
FROM arms;
DROP TABLE arms;
ALTER TABLE new_arms RENAME TO arms;
