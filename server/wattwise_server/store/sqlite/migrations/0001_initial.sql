-- Times are microseconds since 1970 in UTC. Names of enums are those of the protos without their prefix.

CREATE TABLE jobs (
    job_key INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    job_id_prefix TEXT NOT NULL,            -- empty: none
    default_batch_size INTEGER NOT NULL,
    eta_knob REAL NOT NULL,
    beta_knob REAL,                         -- NULL: early stopping is off
    target_metric REAL NOT NULL,
    higher_is_better INTEGER NOT NULL,
    max_epochs INTEGER NOT NULL,
    num_pruning_rounds INTEGER NOT NULL,
    window_size INTEGER NOT NULL,
    prior_mean REAL NOT NULL,
    prior_precision REAL NOT NULL,
    num_explorations INTEGER NOT NULL,
    seed INTEGER,                           -- NULL: entropy
    policy TEXT NOT NULL,
    learn_reward_precision INTEGER NOT NULL,
    reward_precision REAL NOT NULL,
    max_power_watts_per_gpu REAL NOT NULL,
    gpu_count INTEGER NOT NULL,
    gpu_model TEXT NOT NULL,
    trial_lease_seconds REAL NOT NULL,
    create_time INTEGER NOT NULL,
    set_fields TEXT NOT NULL,               -- JSON: the optional fields that were set at the registration
    stage TEXT NOT NULL,
    pruning_round INTEGER NOT NULL,
    round_default INTEGER NOT NULL,
    exploring INTEGER,                      -- number of the trial that holds the exploration slot
    min_cost REAL,
    min_cost_batch_size INTEGER,
    missed_floor REAL,                      -- NULL: nothing has converged
    num_trials INTEGER NOT NULL,
    num_observations INTEGER NOT NULL
);

CREATE TABLE arms (
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

CREATE TABLE trials (
    job_key INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
    trial_number INTEGER NOT NULL,
    batch_size INTEGER NOT NULL,
    origin TEXT NOT NULL,
    policy_role TEXT,                       -- NULL: its policy knows no more of it, or it is not of the search
    pruning_round INTEGER,                  -- NULL: as policy_role
    status TEXT NOT NULL,
    end_reason TEXT,                        -- NULL: not ended
    launch_id TEXT,
    start_time INTEGER NOT NULL,
    end_time INTEGER,
    cost REAL,                              -- of the newest measurement when the trial ended
    cost_bound REAL,
    converged INTEGER NOT NULL,
    target_reached INTEGER NOT NULL,
    observation INTEGER,                    -- place among the job's succeeded trials, from 1
    last_epoch INTEGER,                     -- the newest measurement when the trial ended
    last_time_seconds REAL,
    last_energy_joules REAL,
    last_metric REAL,                       -- NULL beside an epoch: NaN
    last_report_time INTEGER,
    PRIMARY KEY (job_key, trial_number)
) WITHOUT ROWID;

CREATE UNIQUE INDEX trials_by_launch ON trials (job_key, launch_id) WHERE launch_id IS NOT NULL;
CREATE INDEX trials_by_observation ON trials (job_key, batch_size, observation) WHERE observation IS NOT NULL;
CREATE INDEX trials_running ON trials (job_key, trial_number) WHERE status = 'RUNNING';

CREATE TABLE measurements (
    job_key INTEGER NOT NULL,
    trial_number INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    time_seconds REAL NOT NULL,
    energy_joules REAL,                     -- NULL: not measured
    metric REAL,                            -- NULL: NaN
    report_time INTEGER NOT NULL,
    PRIMARY KEY (job_key, trial_number, epoch),
    FOREIGN KEY (job_key, trial_number) REFERENCES trials ON DELETE CASCADE
) WITHOUT ROWID;

-- Trials that were running when their job was deleted, so that their trainers are told to stop.
CREATE TABLE deleted_trials (
    job_id TEXT NOT NULL,
    trial_number INTEGER NOT NULL,
    batch_size INTEGER NOT NULL,
    delete_time INTEGER NOT NULL,
    PRIMARY KEY (job_id, trial_number, batch_size)
) WITHOUT ROWID;
