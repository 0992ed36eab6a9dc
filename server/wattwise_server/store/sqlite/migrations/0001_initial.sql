-- Times are microseconds since 1970 in UTC. Names of enums are those of the protos without their prefix.

CREATE TABLE jobs (
    -- The configuration that the job was registered with.
    job_key INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    job_id_prefix TEXT NOT NULL,            -- empty: none
    create_time INTEGER NOT NULL,
    default_batch_size INTEGER NOT NULL,
    target_metric REAL NOT NULL,
    higher_is_better INTEGER NOT NULL,
    max_epochs INTEGER NOT NULL,
    eta_knob REAL NOT NULL,
    beta_knob REAL,                         -- NULL: early stopping is off
    gpu_model TEXT NOT NULL,
    gpu_count INTEGER NOT NULL,
    max_power_watts_per_gpu REAL NOT NULL,
    trial_lease_seconds REAL NOT NULL,      -- 0: no lease
    policy TEXT NOT NULL,
    prior_job_ids TEXT NOT NULL,            -- JSON
    window_size INTEGER NOT NULL,
    num_pruning_rounds INTEGER NOT NULL,
    prior_mean REAL NOT NULL,
    prior_precision REAL NOT NULL,
    num_explorations INTEGER NOT NULL,
    seed INTEGER,                           -- NULL: entropy
    learn_reward_precision INTEGER NOT NULL,
    reward_precision REAL NOT NULL,
    set_fields TEXT NOT NULL,               -- JSON: fields registered with another value than their default
    -- The search.
    stage TEXT NOT NULL,
    pruning_round INTEGER NOT NULL,
    round_default INTEGER NOT NULL,
    exploring INTEGER,                      -- number of the trial that holds the exploration slot
    min_cost REAL,
    min_cost_batch_size INTEGER,
    bound_stops INTEGER NOT NULL,
    num_trials INTEGER NOT NULL,
    num_observations INTEGER NOT NULL,
    best_known INTEGER,                     -- NULL: no batch size has converged
    best_known_cost REAL,                   -- expected, in joules
    notes TEXT NOT NULL,                    -- what only the policy knows
    first_notes TEXT NOT NULL,              -- before the first trial; empty: they do not depend on other jobs
    num_search_events INTEGER NOT NULL,
    -- Where the energy of the newest results comes from, and that of earlier ones if it differs.
    monitor_kinds TEXT NOT NULL,            -- JSON, in the order in which they were first used
    monitor_quality TEXT NOT NULL,
    other_monitors TEXT NOT NULL,           -- JSON
    -- What a person has changed.
    changed_policy TEXT,                    -- NULL: `policy`
    changed_parameters TEXT,                -- JSON: the fields of `changed_policy`
    paused INTEGER NOT NULL,
    pinned INTEGER,                         -- a batch size
    reset_after INTEGER NOT NULL,           -- trials up to this number do not count
    reset_time INTEGER,                     -- NULL: never
    baseline_requested INTEGER NOT NULL,
    baseline_every INTEGER NOT NULL,        -- 0: no regular baselines
    requests TEXT NOT NULL,                 -- JSON: the newest requests with an id, such as ["reset ID", ...]
    warnings TEXT NOT NULL                  -- JSON: [[reason, field, message, trial], ...]
);

-- The batch sizes of a job, and the costs of their trials.
CREATE TABLE arms (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    batch_size INTEGER NOT NULL,
    pruned INTEGER NOT NULL,
    excluded INTEGER NOT NULL,              -- does not fit into memory
    banned INTEGER NOT NULL,
    round_cost REAL,                        -- NULL: no result in this round
    num_decided INTEGER NOT NULL,
    num_converged INTEGER NOT NULL,
    num_failed INTEGER NOT NULL,
    num_out_of_memory INTEGER NOT NULL,
    failed_cost REAL NOT NULL,
    failed_trials TEXT NOT NULL,            -- JSON: the numbers of the newest since one was decided, oldest first
    out_of_memory INTEGER NOT NULL,         -- trials, since one of this or a larger batch size was decided
    cheapest REAL,                          -- NULL: none has converged
    reached_count INTEGER NOT NULL,
    reached_mean REAL NOT NULL,
    reached_deviation REAL NOT NULL,
    PRIMARY KEY (job_key, batch_size)
) WITHOUT ROWID;

-- The power limits that are known for a batch size: the cheapest and the highest sample of a profile.
CREATE TABLE power_limits (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    batch_size INTEGER NOT NULL,
    cheapest_limit_watts_per_gpu REAL,
    cheapest_time_seconds REAL,
    cheapest_energy_joules REAL,
    cheapest_steps INTEGER,                 -- NULL: no report yet
    highest_limit_watts_per_gpu REAL,
    highest_time_seconds REAL,
    highest_energy_joules REAL,
    highest_steps INTEGER,
    profiling INTEGER,                      -- number of the trial that profiles, for as long as it runs
    PRIMARY KEY (job_key, batch_size)
) WITHOUT ROWID;

CREATE TABLE trials (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    trial_number INTEGER NOT NULL,
    batch_size INTEGER NOT NULL,
    origin TEXT NOT NULL,
    role TEXT,                              -- NULL: its policy knows no more of it, or it is not of the search
    pruning_round INTEGER,                  -- NULL: as `role`
    status TEXT NOT NULL,
    end_reason TEXT,                        -- NULL: running
    launch_id TEXT NOT NULL,
    start_time INTEGER NOT NULL,
    start_known INTEGER NOT NULL,           -- 0: `start_time` says nothing
    end_time INTEGER,                       -- NULL: running
    cost REAL,                              -- NULL: running, or no report
    cost_bound REAL,
    converged INTEGER NOT NULL,
    target_reached INTEGER NOT NULL,
    observation INTEGER,                    -- place among the job's decided trials, from 1; NULL: a doubtful one
    best_known INTEGER NOT NULL,            -- whether it had no bound because its batch size was the best known one
    -- The newest measurement when the trial ended.
    last_epoch INTEGER,                     -- NULL: running, or no report
    last_time_seconds REAL,
    last_energy_joules REAL,                -- NULL beside an epoch: not measured
    last_metric REAL,                       -- NULL beside an epoch: NaN
    last_report_time INTEGER,
    last_computed_time_seconds REAL,        -- NULL: not in observer mode
    last_computed_energy_joules REAL,
    last_computed_limit_watts_per_gpu REAL,
    last_limit_watts_per_gpu REAL,          -- NULL: unknown
    -- As for a job.
    monitor_kinds TEXT NOT NULL,
    monitor_quality TEXT NOT NULL,
    other_monitors TEXT NOT NULL,           -- JSON
    excluded INTEGER NOT NULL,
    dispatch_event INTEGER NOT NULL,        -- its number among the job's events
    end_event INTEGER,                      -- NULL: running
    warnings TEXT NOT NULL,                 -- JSON, as for a job
    profile TEXT,                           -- JSON: [cheapest sample, highest sample]; NULL: none
    PRIMARY KEY (job_key, trial_number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX trials_by_launch ON trials (job_key, launch_id);
CREATE INDEX trials_by_observation ON trials (job_key, batch_size, observation) WHERE observation IS NOT NULL;
CREATE INDEX trials_running ON trials (job_key, trial_number) WHERE status = 'RUNNING';
CREATE INDEX trials_by_start ON trials (start_time, job_key, trial_number);
CREATE INDEX trials_by_end ON trials (job_key, end_time, target_reached);
CREATE INDEX trials_excluded ON trials (job_key, trial_number) WHERE excluded;

-- The reports of a trial, one for each epoch.
CREATE TABLE measurements (
    job_key INTEGER NOT NULL,
    trial_number INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    time_seconds REAL NOT NULL,
    energy_joules REAL,                     -- NULL: not measured
    metric REAL,                            -- NULL: NaN
    report_time INTEGER NOT NULL,
    computed_time_seconds REAL,             -- NULL: not in observer mode
    computed_energy_joules REAL,
    computed_limit_watts_per_gpu REAL,
    limit_watts_per_gpu REAL,               -- NULL: unknown
    PRIMARY KEY (job_key, trial_number, epoch),
    FOREIGN KEY (job_key, trial_number) REFERENCES trials ON DELETE CASCADE
) WITHOUT ROWID;

-- What is known of the launch of a trial. Apart, because a trial's row is written again at its end.
CREATE TABLE launches (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    trial_number INTEGER NOT NULL,
    reason TEXT NOT NULL,
    labels TEXT NOT NULL,                   -- JSON: [[key, value], ...]
    token_id TEXT NOT NULL,
    PRIMARY KEY (job_key, trial_number)
) WITHOUT ROWID;

-- All samples of a profile.
CREATE TABLE power_samples (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    trial_number INTEGER NOT NULL,
    samples TEXT NOT NULL,                  -- JSON: [[watts, seconds, joules, steps], ...]
    PRIMARY KEY (job_key, trial_number)
) WITHOUT ROWID;

-- The events of a job that its trials do not tell: bans, and what came before the newest end of a revived trial.
-- With them its search can be rebuilt.
CREATE TABLE search_events (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    batch_size INTEGER NOT NULL,
    trial_number INTEGER,                   -- NULL: about the batch size; the rest is of the trial at that time
    role TEXT,
    pruning_round INTEGER,
    end_reason TEXT,
    cost REAL,
    last_epoch INTEGER,
    last_time_seconds REAL,
    last_energy_joules REAL,
    last_metric REAL,                       -- NULL beside an epoch: NaN
    last_report_time INTEGER,
    last_computed_time_seconds REAL,
    last_computed_energy_joules REAL,
    last_computed_limit_watts_per_gpu REAL,
    last_limit_watts_per_gpu REAL,
    PRIMARY KEY (job_key, number)
) WITHOUT ROWID;

-- What happened to jobs, for people. It outlives the jobs.
CREATE TABLE events (
    entry INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    time INTEGER NOT NULL,
    kind TEXT NOT NULL,
    trial_number INTEGER,                   -- NULL: none
    batch_size INTEGER,                     -- NULL: none
    message TEXT NOT NULL,
    token_id TEXT NOT NULL
);
CREATE INDEX events_by_job ON events (job_id, entry);
CREATE INDEX events_by_time ON events (time);

-- Which jobs and which of their dispatched launches were deleted, so that no trainer delivers them as new ones. A job id
-- may have been deleted several times.
CREATE TABLE deletions (
    job_id TEXT NOT NULL,
    launch_id TEXT NOT NULL,                -- empty: the job itself
    create_time INTEGER NOT NULL,           -- of the job; the start of the launch
    delete_time INTEGER NOT NULL,
    PRIMARY KEY (job_id, launch_id, create_time)
) WITHOUT ROWID;
CREATE INDEX deletions_by_time ON deletions (delete_time);

-- Keys that belong to the database.
CREATE TABLE secrets (
    name TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (name)
);
INSERT INTO secrets VALUES ('page tokens', randomblob(32));
