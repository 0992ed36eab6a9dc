-- One name for one thing: what was called a meter is a monitor.
ALTER TABLE jobs RENAME COLUMN meter TO monitor;
ALTER TABLE jobs RENAME COLUMN other_meter TO other_monitor;
ALTER TABLE trials RENAME COLUMN meter TO monitor;
ALTER TABLE trials RENAME COLUMN other_meter TO other_monitor;
