-- What observer mode computes beside what was measured; what looks wrong about trials; the highest limit of a profile.
ALTER TABLE measurements ADD COLUMN computed_time_seconds REAL;         -- NULL: not in observer mode
ALTER TABLE measurements ADD COLUMN computed_energy_joules REAL;
ALTER TABLE measurements ADD COLUMN computed_limit_watts_per_gpu REAL;
ALTER TABLE trials ADD COLUMN last_computed_time_seconds REAL;
ALTER TABLE trials ADD COLUMN last_computed_energy_joules REAL;
ALTER TABLE trials ADD COLUMN last_computed_limit_watts_per_gpu REAL;
ALTER TABLE events ADD COLUMN last_computed_time_seconds REAL;
ALTER TABLE events ADD COLUMN last_computed_energy_joules REAL;
ALTER TABLE events ADD COLUMN last_computed_limit_watts_per_gpu REAL;
ALTER TABLE trials ADD COLUMN last_limit_watts_per_gpu REAL;              -- NULL: unknown
ALTER TABLE events ADD COLUMN last_limit_watts_per_gpu REAL;
ALTER TABLE measurements ADD COLUMN limit_watts_per_gpu REAL;
ALTER TABLE trials ADD COLUMN warnings TEXT NOT NULL DEFAULT '';        -- JSON: [[reason, field, message, trial], ...]
ALTER TABLE jobs ADD COLUMN warnings TEXT NOT NULL DEFAULT '';
ALTER TABLE power_limits ADD COLUMN highest_limit_watts_per_gpu REAL;     -- NULL: stored by an older version
ALTER TABLE power_limits ADD COLUMN highest_time_seconds REAL;
ALTER TABLE power_limits ADD COLUMN highest_energy_joules REAL;
ALTER TABLE power_limits ADD COLUMN highest_steps INTEGER;
