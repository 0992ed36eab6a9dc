-- min_reader_version: 1
-- What note_server_1 does, also after the system clock was set back: else what was stored as a time to come would last
-- longer by as much.
CREATE FUNCTION note_server_2(this bigint, OUT now bigint, OUT others bigint[]) LANGUAGE plpgsql AS $$
BEGIN
    now := micros_now();
    IF (SELECT max(s.seen) > now + 5000000 FROM servers s) THEN
        -- Renewals lock leases in this order, too.
        PERFORM l.job_key FROM leases l ORDER BY l.job_key, l.trial_number FOR UPDATE;
        UPDATE leases l SET expires = least(l.expires, now + (j.trial_lease_seconds * 1000000)::bigint), claimed = 0
        FROM jobs j WHERE j.job_key = l.job_key;
        UPDATE retention r SET began = least(r.began, now);
        UPDATE servers s SET seen = now WHERE s.seen > now;
    END IF;
    SELECT n.now, n.others INTO now, others FROM note_server_1(this) AS n;
END
$$;
