-- min_reader_version: 5
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
    missed_floor double precision,              -- NULL: nothing has converged
    bound_stops bigint NOT NULL,
    num_trials bigint NOT NULL,
    num_observations bigint NOT NULL,
    best_known bigint,                          -- NULL: no batch size has converged
    best_known_cost double precision,           -- expected, in joules
    notes text NOT NULL,                        -- what only the policy knows
    first_notes text NOT NULL,                  -- before the first trial; empty: they do not depend on other jobs
    num_events bigint NOT NULL,
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
    missed_count bigint NOT NULL,
    missed_mean double precision NOT NULL,
    missed_deviation double precision NOT NULL,
    counted_count bigint NOT NULL,
    counted_mean double precision NOT NULL,
    counted_deviation double precision NOT NULL,
    PRIMARY KEY (job_key, batch_size)
) WITH (fillfactor = 70);

-- The power limits that are known for a batch size: the cheapest and the highest sample of a profile.
CREATE TABLE power_limits (
    job_key bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    batch_size bigint NOT NULL,
    limit_watts_per_gpu double precision,
    time_seconds double precision,
    energy_joules double precision,
    steps bigint,                               -- NULL: no report yet
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
    policy_role text,                           -- NULL: its policy knows no more of it, or it is not of the search
    pruning_round bigint,                       -- NULL: as `policy_role`
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
    profile text NOT NULL,                      -- JSON: [cheapest sample, highest sample]; empty: none
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
    labels text NOT NULL,                       -- JSON: [[key, value], ...]; empty: none
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

-- The events of a job that the trials do not tell: bans, and what came before the newest end of a trial that was revived.
-- With them its search can be rebuilt.
CREATE TABLE events (
    job_key bigint NOT NULL REFERENCES jobs ON DELETE CASCADE,
    event bigint NOT NULL,
    kind text NOT NULL,
    batch_size bigint NOT NULL,
    trial_number bigint,                        -- NULL: about the batch size; the rest is of the trial at that time
    policy_role text,
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
    PRIMARY KEY (job_key, event)
);

-- What happened to jobs, for people. It outlives the jobs.
CREATE TABLE history (
    entry bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL,
    time bigint NOT NULL,
    kind text NOT NULL,
    trial_number bigint,                        -- NULL: none
    batch_size bigint,                          -- NULL: none
    message text NOT NULL,
    token_id text NOT NULL
);
CREATE INDEX history_by_job ON history (job_id, entry);
CREATE INDEX history_by_time ON history (time);

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

-- Commits the changes of a group, or nothing: then it returns the keys of the jobs that are not as they were read.
--
-- number: the group's among those of the server; 0 if it only renews leases or changes nothing, and may be repeated.
-- changed, changed_versions: jobs that the group changes, with the versions that were read.
-- read, read_versions: jobs that its answers rest on.
-- created_ids: ids of new jobs, none of which may exist.
-- prefixes, limits, limited: how many jobs may exist under a prefix before the job of that key is created.
-- expired_jobs, expired_trials: trials whose lease must have expired.
-- started_…, leased_…: how long the leases of trials that start to run, and of others, last from now.
-- ended_…: trials that have ended.
-- measured_…: measurements without computed sums. …_rows: JSON objects, NULL if there are none.
CREATE FUNCTION save_1(
    this bigint, number bigint,
    changed bigint[], changed_versions bigint[], read bigint[], read_versions bigint[],
    created bigint[], created_ids text[],
    prefixes text[], limits bigint[], limited bigint[],
    expired_jobs bigint[], expired_trials bigint[],
    started_jobs bigint[], started_trials bigint[], started_micros bigint[],
    leased_jobs bigint[], leased_trials bigint[], leased_micros bigint[],
    ended_jobs bigint[], ended_trials bigint[],
    measured_jobs bigint[], measured_trials bigint[], measured_epochs bigint[], measured_seconds double precision[],
    measured_joules double precision[], measured_metrics double precision[], measured_times bigint[],
    new_jobs_rows json, job_states_rows json, arms_rows json, power_limits_rows json, trials_rows json,
    launches_rows json, power_samples_rows json, computed_rows json, events_rows json, history_rows json,
    kept_rows json, deleted_rows json, forgotten_rows json
) RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moved bigint[];
    num_changed bigint;
    now bigint;
    n jobs;
BEGIN
    num_changed := cardinality(changed);
    IF num_changed > 1 OR expired_jobs IS NOT NULL OR limited IS NOT NULL THEN
        -- Locked rows are of the newest version. In order, and before all other locks, so that no two groups wait for
        -- each other.
        SELECT array_agg(e.job_key) INTO moved FROM unnest(changed, changed_versions) AS e (job_key, version)
        LEFT JOIN (
            SELECT v.job_key, v.version FROM job_versions v WHERE v.job_key = ANY (changed) ORDER BY v.job_key FOR UPDATE
        ) AS v ON v.job_key = e.job_key
        WHERE v.version IS DISTINCT FROM e.version;
        IF moved IS NOT NULL THEN
            RETURN moved;
        END IF;
    END IF;
    IF read IS NOT NULL THEN
        SELECT array_agg(e.job_key) INTO moved FROM unnest(read, read_versions) AS e (job_key, version)
        LEFT JOIN job_versions v ON v.job_key = e.job_key WHERE v.version IS DISTINCT FROM e.version;
        IF moved IS NOT NULL THEN
            RETURN moved;
        END IF;
    END IF;
    IF created IS NOT NULL THEN
        IF limited IS NOT NULL THEN
            PERFORM pg_advisory_xact_lock(8677, 1);
            SELECT array_agg(e.job_key) INTO moved FROM unnest(prefixes, limits, limited) AS e (prefix, most, job_key)
            WHERE e.most <= (
                SELECT count(*) FROM jobs j WHERE j.job_id >= e.prefix AND j.job_id < e.prefix || repeat(chr(1114111), 200)
            );
            IF moved IS NOT NULL THEN
                RETURN moved;
            END IF;
        END IF;
        SELECT array_agg(e.job_key) INTO moved FROM unnest(created, created_ids) AS e (job_key, job_id)
        JOIN jobs j ON j.job_id = e.job_id;
        IF moved IS NOT NULL THEN
            RETURN moved;
        END IF;
    END IF;
    IF leased_jobs IS NOT NULL OR started_jobs IS NOT NULL OR expired_jobs IS NOT NULL THEN
        now := micros_now();
    END IF;
    IF expired_jobs IS NOT NULL THEN
        IF (SELECT coalesce(max(s.seen), 0) < now - 5000000 FROM servers s) THEN
            PERFORM note_server_1(this);
        END IF;
        SELECT array_agg(DISTINCT l.job_key) INTO moved FROM (
            SELECT l.job_key, l.expires FROM leases l
            JOIN unnest(expired_jobs, expired_trials) AS e (job_key, trial_number)
                ON l.job_key = e.job_key AND l.trial_number = e.trial_number
            ORDER BY l.job_key, l.trial_number FOR UPDATE OF l
        ) AS l WHERE l.expires > now;
        IF moved IS NOT NULL THEN
            RETURN moved;
        END IF;
    END IF;

    IF num_changed = 1 THEN
        -- If it waits for another server's update, it compares the version that this one leaves.
        UPDATE job_versions v SET version = v.version + 1, server = this, group_number = number
        WHERE v.job_key = changed[1] AND v.version = changed_versions[1];
        IF NOT FOUND THEN
            RETURN changed;
        END IF;
    ELSIF num_changed > 1 THEN
        -- They were compared when they were locked.
        UPDATE job_versions v SET version = v.version + 1, server = this, group_number = number
        WHERE v.job_key = ANY (changed);
    END IF;
    IF new_jobs_rows IS NOT NULL THEN
        INSERT INTO jobs (
            job_key, job_id, job_id_prefix, default_batch_size, eta_knob, beta_knob, target_metric, higher_is_better,
            max_epochs, trial_lease_seconds, policy, window_size, prior_job_ids, num_pruning_rounds, prior_mean,
            prior_precision, num_explorations, seed, learn_reward_precision, reward_precision, gpu_model, gpu_count,
            max_power_watts_per_gpu, create_time, set_fields, stage, pruning_round, round_default, exploring, min_cost,
            min_cost_batch_size, missed_floor, bound_stops, num_trials, best_known, best_known_cost, notes,
            num_observations, monitor_kinds, monitor_quality, other_monitors, num_events,
            first_notes, changed_policy, changed_parameters, reset_after, reset_time, paused, pinned,
            baseline_requested, baseline_every, requests, warnings
        ) SELECT
            job_key, job_id, job_id_prefix, default_batch_size, eta_knob, beta_knob, target_metric, higher_is_better,
            max_epochs, trial_lease_seconds, policy, window_size, prior_job_ids, num_pruning_rounds, prior_mean,
            prior_precision, num_explorations, seed, learn_reward_precision, reward_precision, gpu_model, gpu_count,
            max_power_watts_per_gpu, create_time, set_fields, stage, pruning_round, round_default, exploring, min_cost,
            min_cost_batch_size, missed_floor, bound_stops, num_trials, best_known, best_known_cost, notes,
            num_observations, monitor_kinds, monitor_quality, other_monitors, num_events,
            first_notes, changed_policy, changed_parameters, reset_after, reset_time, paused, pinned,
            baseline_requested, baseline_every, requests, warnings
        FROM json_populate_recordset(NULL::jobs, new_jobs_rows) ORDER BY job_id;
    END IF;
    IF created IS NOT NULL THEN
        INSERT INTO job_versions SELECT e.job_key, 1, this, number FROM unnest(created) AS e (job_key);
    END IF;
    IF job_states_rows IS NOT NULL THEN
        -- One by one, each by its key: whatever the planner knows of the table, it cannot choose to read all of it.
        FOR n IN SELECT * FROM json_populate_recordset(NULL::jobs, job_states_rows) LOOP
            UPDATE jobs j SET
                stage = n.stage, pruning_round = n.pruning_round, round_default = n.round_default,
                exploring = n.exploring, min_cost = n.min_cost, min_cost_batch_size = n.min_cost_batch_size,
                missed_floor = n.missed_floor, bound_stops = n.bound_stops, num_trials = n.num_trials,
                best_known = n.best_known, best_known_cost = n.best_known_cost, notes = n.notes,
                num_observations = n.num_observations, monitor_kinds = n.monitor_kinds,
                monitor_quality = n.monitor_quality, other_monitors = n.other_monitors,
                num_events = n.num_events, first_notes = n.first_notes,
                changed_policy = n.changed_policy, changed_parameters = n.changed_parameters,
                reset_after = n.reset_after, reset_time = n.reset_time, paused = n.paused, pinned = n.pinned,
                baseline_requested = n.baseline_requested, baseline_every = n.baseline_every,
                requests = n.requests, warnings = n.warnings
            WHERE j.job_key = n.job_key;
        END LOOP;
    END IF;
    IF arms_rows IS NOT NULL THEN
        INSERT INTO arms (
            job_key, batch_size, pruned, excluded, banned, round_cost, num_decided, num_converged, num_failed,
            num_out_of_memory, failed_cost, failed_trials, out_of_memory, cheapest, reached_count, reached_mean,
            reached_deviation, missed_count, missed_mean, missed_deviation, counted_count, counted_mean,
            counted_deviation
        ) SELECT
            job_key, batch_size, pruned, excluded, banned, round_cost, num_decided, num_converged, num_failed,
            num_out_of_memory, failed_cost, failed_trials, out_of_memory, cheapest, reached_count, reached_mean,
            reached_deviation, missed_count, missed_mean, missed_deviation, counted_count, counted_mean,
            counted_deviation
        FROM json_populate_recordset(NULL::arms, arms_rows)
        ON CONFLICT (job_key, batch_size) DO UPDATE SET
            pruned = excluded.pruned, excluded = excluded.excluded, banned = excluded.banned,
            round_cost = excluded.round_cost, num_decided = excluded.num_decided,
            num_converged = excluded.num_converged, num_failed = excluded.num_failed,
            num_out_of_memory = excluded.num_out_of_memory, failed_cost = excluded.failed_cost,
            failed_trials = excluded.failed_trials, out_of_memory = excluded.out_of_memory,
            cheapest = excluded.cheapest, reached_count = excluded.reached_count, reached_mean = excluded.reached_mean,
            reached_deviation = excluded.reached_deviation, missed_count = excluded.missed_count,
            missed_mean = excluded.missed_mean, missed_deviation = excluded.missed_deviation,
            counted_count = excluded.counted_count, counted_mean = excluded.counted_mean,
            counted_deviation = excluded.counted_deviation;
    END IF;
    IF power_limits_rows IS NOT NULL THEN
        INSERT INTO power_limits (
            job_key, batch_size, limit_watts_per_gpu, time_seconds, energy_joules, steps, profiling,
            highest_limit_watts_per_gpu, highest_time_seconds, highest_energy_joules, highest_steps
        ) SELECT
            job_key, batch_size, limit_watts_per_gpu, time_seconds, energy_joules, steps, profiling,
            highest_limit_watts_per_gpu, highest_time_seconds, highest_energy_joules, highest_steps
        FROM json_populate_recordset(NULL::power_limits, power_limits_rows)
        ON CONFLICT (job_key, batch_size) DO UPDATE SET
            limit_watts_per_gpu = excluded.limit_watts_per_gpu, time_seconds = excluded.time_seconds,
            energy_joules = excluded.energy_joules, steps = excluded.steps, profiling = excluded.profiling,
            highest_limit_watts_per_gpu = excluded.highest_limit_watts_per_gpu,
            highest_time_seconds = excluded.highest_time_seconds,
            highest_energy_joules = excluded.highest_energy_joules, highest_steps = excluded.highest_steps;
    END IF;
    IF trials_rows IS NOT NULL THEN
        INSERT INTO trials (
            job_key, trial_number, batch_size, origin, policy_role, pruning_round, status, end_reason, launch_id,
            start_time, start_known, end_time, cost, cost_bound, converged, target_reached, observation, best_known,
            last_epoch, last_time_seconds, last_energy_joules, last_metric, last_report_time,
            last_computed_time_seconds, last_computed_energy_joules, last_computed_limit_watts_per_gpu,
            last_limit_watts_per_gpu, monitor_kinds, monitor_quality, other_monitors,
            excluded, dispatch_event, end_event, warnings, profile
        ) SELECT
            job_key, trial_number, batch_size, origin, policy_role, pruning_round, status, end_reason, launch_id,
            start_time, start_known, end_time, cost, cost_bound, converged, target_reached, observation, best_known,
            last_epoch, last_time_seconds, last_energy_joules, last_metric, last_report_time,
            last_computed_time_seconds, last_computed_energy_joules, last_computed_limit_watts_per_gpu,
            last_limit_watts_per_gpu, monitor_kinds, monitor_quality, other_monitors,
            excluded, dispatch_event, end_event, warnings, profile
        FROM json_populate_recordset(NULL::trials, trials_rows)
        ON CONFLICT (job_key, trial_number) DO UPDATE SET
            batch_size = excluded.batch_size, origin = excluded.origin, policy_role = excluded.policy_role,
            pruning_round = excluded.pruning_round, status = excluded.status, end_reason = excluded.end_reason,
            launch_id = excluded.launch_id, start_time = excluded.start_time, start_known = excluded.start_known,
            end_time = excluded.end_time, cost = excluded.cost, cost_bound = excluded.cost_bound,
            converged = excluded.converged, target_reached = excluded.target_reached,
            observation = excluded.observation, best_known = excluded.best_known, last_epoch = excluded.last_epoch,
            last_time_seconds = excluded.last_time_seconds, last_energy_joules = excluded.last_energy_joules,
            last_metric = excluded.last_metric, last_report_time = excluded.last_report_time,
            last_computed_time_seconds = excluded.last_computed_time_seconds,
            last_computed_energy_joules = excluded.last_computed_energy_joules,
            last_computed_limit_watts_per_gpu = excluded.last_computed_limit_watts_per_gpu,
            last_limit_watts_per_gpu = excluded.last_limit_watts_per_gpu, monitor_kinds = excluded.monitor_kinds,
            monitor_quality = excluded.monitor_quality, other_monitors = excluded.other_monitors,
            excluded = excluded.excluded,
            dispatch_event = excluded.dispatch_event, end_event = excluded.end_event, warnings = excluded.warnings,
            profile = excluded.profile;
    END IF;
    IF launches_rows IS NOT NULL THEN
        INSERT INTO launches (job_key, trial_number, reason, labels, token_id)
        SELECT job_key, trial_number, reason, labels, token_id
        FROM json_populate_recordset(NULL::launches, launches_rows);
    END IF;
    IF power_samples_rows IS NOT NULL THEN
        INSERT INTO power_samples (job_key, trial_number, samples)
        SELECT job_key, trial_number, samples
        FROM json_populate_recordset(NULL::power_samples, power_samples_rows)
        ON CONFLICT (job_key, trial_number) DO UPDATE SET samples = excluded.samples;
    END IF;
    IF cardinality(measured_jobs) = 1 THEN
        INSERT INTO measurements (job_key, trial_number, epoch, time_seconds, energy_joules, metric, report_time)
        VALUES (
            measured_jobs[1], measured_trials[1], measured_epochs[1], measured_seconds[1], measured_joules[1],
            nullif(measured_metrics[1], 'NaN'), measured_times[1]
        );
    ELSIF measured_jobs IS NOT NULL THEN
        INSERT INTO measurements (job_key, trial_number, epoch, time_seconds, energy_joules, metric, report_time)
        SELECT m.job_key, m.trial_number, m.epoch, m.seconds, m.joules, nullif(m.metric, 'NaN'), m.report_time
        FROM unnest(
            measured_jobs, measured_trials, measured_epochs, measured_seconds, measured_joules, measured_metrics,
            measured_times
        ) AS m (job_key, trial_number, epoch, seconds, joules, metric, report_time);
    END IF;
    IF computed_rows IS NOT NULL THEN
        INSERT INTO measurements (
            job_key, trial_number, epoch, time_seconds, energy_joules, metric, report_time, computed_time_seconds,
            computed_energy_joules, computed_limit_watts_per_gpu, limit_watts_per_gpu
        ) SELECT
            job_key, trial_number, epoch, time_seconds, energy_joules, metric, report_time, computed_time_seconds,
            computed_energy_joules, computed_limit_watts_per_gpu, limit_watts_per_gpu
        FROM json_populate_recordset(NULL::measurements, computed_rows);
    END IF;
    IF events_rows IS NOT NULL THEN
        INSERT INTO events (
            job_key, event, kind, batch_size, trial_number, policy_role, end_reason, cost, last_epoch,
            last_time_seconds, last_energy_joules, last_metric, last_report_time, last_computed_time_seconds,
            last_computed_energy_joules, last_computed_limit_watts_per_gpu, last_limit_watts_per_gpu
        ) SELECT
            job_key, event, kind, batch_size, trial_number, policy_role, end_reason, cost, last_epoch,
            last_time_seconds, last_energy_joules, last_metric, last_report_time, last_computed_time_seconds,
            last_computed_energy_joules, last_computed_limit_watts_per_gpu, last_limit_watts_per_gpu
        FROM json_populate_recordset(NULL::events, events_rows);
    END IF;
    IF history_rows IS NOT NULL THEN
        INSERT INTO history (job_id, time, kind, trial_number, batch_size, message, token_id)
        SELECT job_id, time, kind, trial_number, batch_size, message, token_id
        FROM json_populate_recordset(NULL::history, history_rows);
    END IF;
    IF kept_rows IS NOT NULL THEN
        DELETE FROM measurements m USING json_to_recordset(kept_rows) AS k (
            job_key bigint, trial_number bigint, newest bigint
        ) WHERE m.job_key = k.job_key AND m.trial_number = k.trial_number AND m.epoch <= (
            SELECT n.epoch FROM measurements n WHERE n.job_key = k.job_key AND n.trial_number = k.trial_number
            ORDER BY n.epoch DESC LIMIT 1 OFFSET k.newest
        );
    END IF;
    IF leased_jobs IS NOT NULL THEN
        IF number = 0 THEN
            -- A renewal that is lost with the database is made up for by the full leases that follow.
            PERFORM set_config('synchronous_commit', 'off', true);
        END IF;
        UPDATE leases l SET expires = greatest(l.expires, now + e.micros), claimed = 0
        FROM unnest(leased_jobs, leased_trials, leased_micros) AS e (job_key, trial_number, micros)
        WHERE l.job_key = e.job_key AND l.trial_number = e.trial_number;
    END IF;
    IF started_jobs IS NOT NULL THEN
        INSERT INTO leases AS l SELECT e.job_key, e.trial_number, now + e.micros
        FROM unnest(started_jobs, started_trials, started_micros) AS e (job_key, trial_number, micros)
        ON CONFLICT (job_key, trial_number) DO UPDATE SET expires = greatest(l.expires, excluded.expires), claimed = 0;
    END IF;
    IF ended_jobs IS NOT NULL THEN
        DELETE FROM leases l USING unnest(ended_jobs, ended_trials) AS e (job_key, trial_number)
        WHERE l.job_key = e.job_key AND l.trial_number = e.trial_number;
    END IF;
    IF forgotten_rows IS NOT NULL THEN
        DELETE FROM deletions d USING json_to_recordset(forgotten_rows) AS f (delete_time bigint)
        WHERE d.delete_time < f.delete_time;
    END IF;
    IF deleted_rows IS NOT NULL THEN
        INSERT INTO deletions
        SELECT j.job_id, '', j.create_time, d.delete_time
        FROM json_to_recordset(deleted_rows) AS d (job_key bigint, delete_time bigint)
        JOIN jobs j ON j.job_key = d.job_key
        UNION ALL
        SELECT d.job_id, t.launch_id, t.start_time, d.delete_time
        FROM json_to_recordset(deleted_rows) AS d (job_key bigint, job_id text, delete_time bigint)
        JOIN trials t ON t.job_key = d.job_key WHERE t.origin != 'IMPORTED'
        ON CONFLICT (job_id, launch_id, create_time) DO UPDATE SET delete_time = excluded.delete_time;
        -- Without foreign keys, which every report would pay for.
        DELETE FROM measurements m USING json_to_recordset(deleted_rows) AS d (job_key bigint)
        WHERE m.job_key = d.job_key;
        DELETE FROM leases l USING json_to_recordset(deleted_rows) AS d (job_key bigint) WHERE l.job_key = d.job_key;
        DELETE FROM jobs j USING json_to_recordset(deleted_rows) AS d (job_key bigint) WHERE j.job_key = d.job_key;
    END IF;
    RETURN NULL;
END
$$;

-- What save_1 does, of a single report and the lease that it renews (NULL: none).
CREATE FUNCTION save_report_1(
    this bigint, number bigint, version_read bigint, job bigint, trial bigint, measured_epoch bigint,
    seconds double precision, joules double precision, measured_metric double precision, measured_at bigint,
    lease_micros bigint
) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    UPDATE job_versions v SET version = v.version + 1, server = this, group_number = number
    WHERE v.job_key = job AND v.version = version_read;
    IF NOT FOUND THEN
        RETURN ARRAY[job];
    END IF;
    INSERT INTO measurements (job_key, trial_number, epoch, time_seconds, energy_joules, metric, report_time)
    VALUES (job, trial, measured_epoch, seconds, joules, nullif(measured_metric, 'NaN'), measured_at);
    IF lease_micros IS NOT NULL THEN
        UPDATE leases l SET expires = greatest(l.expires, micros_now() + lease_micros), claimed = 0
        WHERE l.job_key = job AND l.trial_number = trial;
    END IF;
    RETURN NULL;
END
$$;
