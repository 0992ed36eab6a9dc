-- The kinds of monitor that energy comes from become columns: the names as a JSON array in the order in which they were
-- first used ('': unknown), and how much of the energy was measured. What was called a meter is a monitor. Until now one text held all: "a+b" for two at once, "a then b" for a change within a trial, and
-- "a or estimate" for a monitor that failed for a while.

ALTER TABLE jobs RENAME COLUMN meter TO monitor_kinds;
ALTER TABLE jobs ADD COLUMN monitor_quality TEXT NOT NULL DEFAULT 'MEASURED';
ALTER TABLE jobs RENAME COLUMN other_meter TO other_monitor_kinds;
ALTER TABLE jobs ADD COLUMN other_monitor_quality TEXT NOT NULL DEFAULT 'MEASURED';
ALTER TABLE trials RENAME COLUMN meter TO monitor_kinds;
ALTER TABLE trials ADD COLUMN monitor_quality TEXT NOT NULL DEFAULT 'MEASURED';
ALTER TABLE trials RENAME COLUMN other_meter TO other_monitor_kinds;
ALTER TABLE trials ADD COLUMN other_monitor_quality TEXT NOT NULL DEFAULT 'MEASURED';

CREATE TEMP TABLE old_monitors (text TEXT PRIMARY KEY, kinds TEXT, failed INTEGER);
INSERT INTO old_monitors (text, failed)
SELECT text, instr(text || ' then ', ' or estimate then ') > 0 FROM (
    SELECT monitor_kinds AS text FROM jobs UNION SELECT other_monitor_kinds FROM jobs
    UNION SELECT monitor_kinds FROM trials UNION SELECT other_monitor_kinds FROM trials
);
UPDATE old_monitors SET kinds = (
    SELECT json_group_array(kind) FROM (
        SELECT value AS kind FROM json_each(
            '[' || replace(
                replace(json_quote(replace(text || ' then ', ' or estimate then ', ' then ')), ' then ', '","'), '+', '","'
            ) || ']'
        )
        WHERE value != '' GROUP BY value ORDER BY min(key)
    )
);

CREATE TEMP TABLE new_monitors (text TEXT PRIMARY KEY, kinds TEXT, quality TEXT);
INSERT INTO new_monitors
SELECT text, CASE text WHEN '' THEN '' ELSE kinds END,
    CASE WHEN NOT estimated THEN 'MEASURED' WHEN kinds = '["estimate"]' THEN 'ESTIMATED' ELSE 'PARTLY_ESTIMATED' END
FROM (
    SELECT text, kinds, failed OR EXISTS (SELECT 1 FROM json_each(kinds) WHERE value = 'estimate') AS estimated
    FROM old_monitors
);
UPDATE jobs SET
    (monitor_kinds, monitor_quality) =
        (SELECT kinds, quality FROM new_monitors WHERE text = monitor_kinds),
    (other_monitor_kinds, other_monitor_quality) =
        (SELECT kinds, quality FROM new_monitors WHERE text = other_monitor_kinds);
UPDATE trials SET
    (monitor_kinds, monitor_quality) =
        (SELECT kinds, quality FROM new_monitors WHERE text = monitor_kinds),
    (other_monitor_kinds, other_monitor_quality) =
        (SELECT kinds, quality FROM new_monitors WHERE text = other_monitor_kinds);
DROP TABLE old_monitors;
DROP TABLE new_monitors;
