-- min_reader_version: 1
-- Times are microseconds since 1970 in UTC. Names of enums are those of the protos without their prefix.
-- Flags and JSON are as in SQLite's tables, so that both are read by the same code.

CREATE SEQUENCE job_keys;

CREATE TABLE jobs (
    -- The configuration that the job was registered with.
    job_key bigint PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL UNIQUE,
    job_id_prefix text NOT NULL,                -- empty: none
    create_time bigint NOT NULL,
    default_batch_size bigint NOT NULL,
    target_metric double precision NOT NULL,
    higher_is_better boolean NOT NULL,
    max_epochs bigint NOT NULL,
    eta_knob double precision NOT NULL,
    beta_knob double precision,                 -- NULL: early stopping is off
    gpu_model text NOT NULL,
    gpu_count bigint NOT NULL,
    max_power_watts_per_gpu double precision NOT NULL,
    trial_lease_seconds double precision NOT NULL,  -- 0: no lease
    policy text NOT NULL,
    prior_job_ids text NOT NULL,                -- JSON
    window_size bigint NOT NULL,
    num_pruning_rounds bigint NOT NULL,
    prior_mean double precision NOT NULL,
    prior_precision double precision NOT NULL,
    num_explorations bigint NOT NULL,
    seed bigint,                                -- NULL: entropy
    learn_reward_precision boolean NOT NULL,
    reward_precision double precision NOT NULL,
    set_fields text NOT NULL,                   -- JSON: fields registered with another value than their default
    -- The search.
    stage text NOT NULL,
    pruning_round bigint NOT NULL,
    round_default bigint NOT NULL,
    exploring bigint,                           -- number of the trial that holds the exploration slot
    min_cost double precision,
    min_cost_batch_size bigint,
    bound_stops bigint NOT NULL,
    num_trials bigint NOT NULL,
    num_observations bigint NOT NULL,
    best_known bigint,                          -- NULL: no batch size has converged
    best_known_cost double precision,           -- expected, in joules
    notes text NOT NULL,                        -- what only the policy knows
    first_notes text NOT NULL,                  -- before the first trial; empty: they do not depend on other jobs
    num_search_events bigint NOT NULL,
    -- Where the energy of the newest results comes from, and that of earlier ones if it differs.
    monitor_kinds text NOT NULL,                -- JSON, in the order in which they were first used
    monitor_quality text NOT NULL,
    other_monitors text NOT NULL,               -- JSON
    -- What a person has changed.
    changed_policy text,                        -- NULL: `policy`
    changed_parameters text,                    -- JSON: the fields of `changed_policy`
    paused boolean NOT NULL,
    pinned bigint,                              -- a batch size
    reset_after bigint NOT NULL,                -- trials up to this number do not count
    reset_time bigint,                          -- NULL: never
    baseline_requested boolean NOT NULL,
    baseline_every bigint NOT NULL,             -- 0: no regular baselines
    requests text NOT NULL,                     -- JSON: the newest requests with an id, such as ["reset ID", ...]
    warnings text NOT NULL                      -- JSON: [[reason, field, message, trial], ...]
) WITH (fillfactor = 70);

-- The batch sizes of a job, and the costs of their trials.
CREATE TABLE arms (
    job_key bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    batch_size bigint NOT NULL,
    pruned boolean NOT NULL,
    excluded boolean NOT NULL,                  -- does not fit into memory
    banned boolean NOT NULL,
    round_cost double precision,                -- NULL: no result in this round
    num_decided bigint NOT NULL,
    num_converged bigint NOT NULL,
    num_failed bigint NOT NULL,
    num_out_of_memory bigint NOT NULL,
    failed_cost double precision NOT NULL,
    failed_trials text NOT NULL,                -- JSON: the numbers of the newest since one was decided, oldest first
    out_of_memory bigint NOT NULL,              -- trials, since one of this or a larger batch size was decided
    cheapest double precision,                  -- NULL: none has converged
    reached_count bigint NOT NULL,
    reached_mean double precision NOT NULL,
    reached_deviation double precision NOT NULL,
    PRIMARY KEY (job_key, batch_size)
) WITH (fillfactor = 70);

-- The power limits that are known for a batch size: the cheapest and the highest sample of a profile.
CREATE TABLE power_limits (
    job_key bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    batch_size bigint NOT NULL,
    cheapest_limit_watts_per_gpu double precision,
    cheapest_time_seconds double precision,
    cheapest_energy_joules double precision,
    cheapest_steps bigint,                      -- NULL: no report yet
    highest_limit_watts_per_gpu double precision,
    highest_time_seconds double precision,
    highest_energy_joules double precision,
    highest_steps bigint,
    profiling bigint,                           -- number of the trial that profiles, for as long as it runs
    PRIMARY KEY (job_key, batch_size)
);

CREATE TABLE trials (
    job_key bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    trial_number bigint NOT NULL,
    batch_size bigint NOT NULL,
    origin text NOT NULL,
    role text,                                  -- NULL: its policy knows no more of it, or it is not of the search
    pruning_round bigint,                       -- NULL: as `role`
    status text NOT NULL,
    end_reason text,                            -- NULL: running
    launch_id text NOT NULL,
    start_time bigint NOT NULL,
    start_known boolean NOT NULL,               -- false: `start_time` says nothing
    end_time bigint,                            -- NULL: running
    cost double precision,                      -- NULL: running, or no report
    cost_bound double precision,
    converged boolean NOT NULL,
    target_reached boolean NOT NULL,
    observation bigint,                         -- place among the job's decided trials, from 1; NULL: a doubtful one
    best_known boolean NOT NULL,                -- whether it had no bound because its batch size was the best known one
    -- The newest measurement when the trial ended.
    last_epoch bigint,                          -- NULL: running, or no report
    last_time_seconds double precision,
    last_energy_joules double precision,        -- NULL beside an epoch: not measured
    last_metric double precision,               -- NULL beside an epoch: NaN
    last_report_time bigint,
    last_computed_time_seconds double precision,  -- NULL: not in observer mode
    last_computed_energy_joules double precision,
    last_computed_limit_watts_per_gpu double precision,
    last_limit_watts_per_gpu double precision,  -- NULL: unknown
    -- As for a job.
    monitor_kinds text NOT NULL,
    monitor_quality text NOT NULL,
    other_monitors text NOT NULL,               -- JSON
    excluded boolean NOT NULL,
    dispatch_event bigint NOT NULL,             -- its number among the job's events
    end_event bigint,                           -- NULL: running
    warnings text NOT NULL,                     -- JSON, as for a job
    profile text,                               -- JSON: [cheapest sample, highest sample]; NULL: none
    PRIMARY KEY (job_key, trial_number)
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX trials_by_launch ON trials (job_key, launch_id);
CREATE INDEX trials_by_observation ON trials (job_key, batch_size, observation) WHERE observation IS NOT NULL;
CREATE INDEX trials_running ON trials (job_key, trial_number) WHERE status = 'RUNNING';
CREATE INDEX trials_by_start ON trials (start_time, job_key, trial_number);
CREATE INDEX trials_by_end ON trials (job_key, end_time, target_reached);
CREATE INDEX trials_excluded ON trials (job_key, trial_number) WHERE excluded;

-- The reports of a trial, one for each epoch.
CREATE TABLE measurements (
    job_key bigint NOT NULL,
    trial_number bigint NOT NULL,
    epoch bigint NOT NULL,
    time_seconds double precision NOT NULL,
    energy_joules double precision,             -- NULL: not measured
    metric double precision,                    -- NULL: NaN
    report_time bigint NOT NULL,
    computed_time_seconds double precision,     -- NULL: not in observer mode
    computed_energy_joules double precision,
    computed_limit_watts_per_gpu double precision,
    limit_watts_per_gpu double precision,       -- NULL: unknown
    PRIMARY KEY (job_key, trial_number, epoch)
);

-- What is known of the launch of a trial. Apart, because a trial's row is written again at its end.
CREATE TABLE launches (
    job_key bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    trial_number bigint NOT NULL,
    reason text NOT NULL,
    labels text NOT NULL,                       -- JSON: [[key, value], ...]
    token_id text NOT NULL,
    PRIMARY KEY (job_key, trial_number)
);

-- All samples of a profile.
CREATE TABLE power_samples (
    job_key bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    trial_number bigint NOT NULL,
    samples text NOT NULL,                      -- JSON: [[watts, seconds, joules, steps], ...]
    PRIMARY KEY (job_key, trial_number)
);

-- The events of a job that its trials do not tell: bans, and what came before the newest end of a revived trial.
-- With them its search can be rebuilt.
CREATE TABLE search_events (
    job_key bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    number bigint NOT NULL,
    kind text NOT NULL,
    batch_size bigint NOT NULL,
    trial_number bigint,                        -- NULL: about the batch size; the rest is of the trial at that time
    role text,
    pruning_round bigint,
    end_reason text,
    cost double precision,
    last_epoch bigint,
    last_time_seconds double precision,
    last_energy_joules double precision,
    last_metric double precision,               -- NULL beside an epoch: NaN
    last_report_time bigint,
    last_computed_time_seconds double precision,
    last_computed_energy_joules double precision,
    last_computed_limit_watts_per_gpu double precision,
    last_limit_watts_per_gpu double precision,
    PRIMARY KEY (job_key, number)
);

-- What happened to jobs, for people. It outlives the jobs.
CREATE TABLE events (
    entry bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL,
    time bigint NOT NULL,
    kind text NOT NULL,
    trial_number bigint,                        -- NULL: none
    batch_size bigint,                          -- NULL: none
    message text NOT NULL,
    token_id text NOT NULL
);
CREATE INDEX events_by_job ON events (job_id, entry);
CREATE INDEX events_by_time ON events (time);

-- Which jobs and which of their dispatched launches were deleted, so that no trainer delivers them as new ones. A job id
-- may have been deleted several times.
CREATE TABLE deletions (
    job_id text COLLATE "C" NOT NULL,
    launch_id text NOT NULL,                    -- empty: the job itself
    create_time bigint NOT NULL,                -- of the job; the start of the launch
    delete_time bigint NOT NULL,
    PRIMARY KEY (job_id, launch_id, create_time)
);
CREATE INDEX deletions_by_time ON deletions (delete_time);

-- Keys that belong to the database.
CREATE TABLE secrets (
    name text NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (name)
);
INSERT INTO secrets VALUES (
    'page tokens', decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex')
);

-- What a commit compares: apart from the wide rows of the jobs, because every report changes it.
-- Who made the newest version says whether a commit in doubt has happened.
CREATE TABLE job_versions (
    job_key bigint PRIMARY KEY REFERENCES jobs ON DELETE CASCADE,
    version bigint NOT NULL,
    server bigint NOT NULL,
    group_number bigint NOT NULL                -- among the groups of that server
) WITH (fillfactor = 50);

-- Of the running trials. A renewal leaves the job's version as it is.
CREATE TABLE leases (
    job_key bigint NOT NULL,
    trial_number bigint NOT NULL,
    expires bigint NOT NULL,
    claimed bigint NOT NULL DEFAULT 0,          -- until then one server is about to give up the trial
    PRIMARY KEY (job_key, trial_number)
) WITH (fillfactor = 50);
CREATE INDEX leases_by_time ON leases (expires);

CREATE TABLE servers (
    server bigint PRIMARY KEY,
    seen bigint NOT NULL
) WITH (fillfactor = 50);

-- When old measurements were last looked for: one server does it.
CREATE TABLE retention (
    began bigint NOT NULL
);
INSERT INTO retention VALUES (0);

CREATE FUNCTION micros_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Notes that a server is there; returns the time, and which others are. No trainer could renew a lease while none was
-- there, so then every running trial gets a full one. After the system clock was set back, what was stored as a time to
-- come would last longer by as much: it is shortened.
CREATE FUNCTION note_server_1(this bigint, OUT now bigint, OUT others bigint[]) LANGUAGE plpgsql AS $$
DECLARE
    newest bigint;
BEGIN
    now := micros_now();
    SELECT max(s.seen) INTO newest FROM servers s;
    IF newest > now + 5000000 THEN
        -- Renewals lock leases in this order, too.
        PERFORM l.job_key FROM leases l ORDER BY l.job_key, l.trial_number FOR UPDATE;
        UPDATE leases l SET expires = least(l.expires, now + (j.trial_lease_seconds * 1000000)::bigint), claimed = 0
        FROM jobs j WHERE j.job_key = l.job_key;
        UPDATE retention r SET began = least(r.began, now);
        UPDATE servers s SET seen = now WHERE s.seen > now;
    ELSIF newest IS NULL OR newest < now - 5000000 THEN
        PERFORM l.job_key FROM leases l ORDER BY l.job_key, l.trial_number FOR UPDATE;
        UPDATE leases l SET expires = greatest(l.expires, now + (j.trial_lease_seconds * 1000000)::bigint), claimed = 0
        FROM jobs j WHERE j.job_key = l.job_key;
    END IF;
    UPDATE servers s SET seen = now WHERE s.server = this;
    IF NOT FOUND THEN
        DELETE FROM servers s WHERE s.seen < now - 86400000000;
        INSERT INTO servers VALUES (this, now) ON CONFLICT (server) DO UPDATE SET seen = excluded.seen;
    END IF;
    SELECT array_agg(s.server) INTO others FROM servers s WHERE s.server != this AND s.seen > now - 5000000;
END
$$;

-- Running trials whose lease has expired, for the calling server to give up; another one gets them if it has not
-- done so in two seconds. After a time without any server there are none until one was noted.
CREATE FUNCTION expired_leases_1() RETURNS TABLE (job_id text, trial_number bigint) LANGUAGE plpgsql AS $$
DECLARE
    now bigint := micros_now();
BEGIN
    IF (SELECT coalesce(max(s.seen), 0) < now - 5000000 FROM servers s) THEN
        RETURN;
    END IF;
    RETURN QUERY
        WITH due AS (
            SELECT l.job_key, l.trial_number FROM leases l WHERE l.expires <= now AND l.claimed <= now
            ORDER BY l.expires LIMIT 100 FOR UPDATE SKIP LOCKED
        ), claimed AS (
            UPDATE leases l SET claimed = now + 2000000 FROM due
            WHERE l.job_key = due.job_key AND l.trial_number = due.trial_number
            RETURNING l.job_key, l.trial_number
        )
        SELECT j.job_id, c.trial_number FROM claimed c JOIN jobs j USING (job_key);
END
$$;

-- Whether a server's group was committed, by one of the jobs that it changed; NULL if that is unknown: the job's version
-- is two or more above the one that was read, so that others have changed it since. Waits for a commit that is under way,
-- and writes, so that the standbys have what it found before it answers.
CREATE FUNCTION settle_1(this bigint, number bigint, changed bigint[], changed_versions bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    found boolean;
BEGIN
    PERFORM v.job_key FROM job_versions v WHERE v.job_key = ANY (changed) ORDER BY v.job_key FOR UPDATE;
    UPDATE job_versions v SET version = v.version WHERE v.job_key = ANY (changed);
    SELECT CASE
        WHEN bool_or(v.server = this AND v.group_number = number) THEN TRUE
        WHEN bool_or(v.version <= e.version + 1) THEN FALSE
    END INTO found
    FROM unnest(changed, changed_versions) AS e (job_key, version) JOIN job_versions v ON v.job_key = e.job_key;
    RETURN found;
END
$$;
