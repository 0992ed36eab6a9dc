-- A temporary function of the writing connection: it commits the changes of a group, or nothing. Then it returns the keys
-- of the jobs that are not as they were read. One statement of SQL could not do the same: its parts do not see what the
-- others write, and a count of jobs after a wait for a lock would be from before the wait.
--
-- In braces: what follows from the descriptions of the tables.
-- number: the group's among those of the server; 0 if it only renews leases or changes nothing, and may be repeated.
-- changed, changed_versions: jobs that the group changes, with the versions that were read.
-- read, read_versions: jobs that its answers rest on.
-- created_ids: ids of new jobs, none of which may exist.
-- prefixes, limits, limited: how many jobs may exist under a prefix before the job of that key is created.
-- expired_jobs, expired_trials: trials whose lease must have expired.
-- started_..., leased_...: how long the leases of trials that start to run, and of others, last from now.
-- ended_...: trials that have ended.
-- ..._rows: JSON objects; NULL if there are none.
CREATE FUNCTION pg_temp.save(
    this bigint, number bigint,
    changed bigint[], changed_versions bigint[], read bigint[], read_versions bigint[],
    created bigint[], created_ids text[],
    prefixes text[], limits bigint[], limited bigint[],
    expired_jobs bigint[], expired_trials bigint[],
    started_jobs bigint[], started_trials bigint[], started_micros bigint[],
    leased_jobs bigint[], leased_trials bigint[], leased_micros bigint[],
    ended_jobs bigint[], ended_trials bigint[],
    kept_rows json, deleted_rows json,
    {parameters}
) RETURNS bigint[] LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moved bigint[];
    num_changed bigint;
    now bigint;
    n record;
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
{writes}
    IF created IS NOT NULL THEN
        INSERT INTO job_versions SELECT e.job_key, 1, this, number FROM unnest(created) AS e (job_key);
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
    IF deleted_rows IS NOT NULL THEN
        DELETE FROM deletions d USING json_to_recordset(deleted_rows) AS f (forget_before bigint)
        WHERE d.delete_time < f.forget_before;
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
