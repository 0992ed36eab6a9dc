-- The cheapest of all samples of power limits that were reported for a batch size; NULL: none.
ALTER TABLE arms ADD COLUMN limit_watts_per_gpu REAL;
ALTER TABLE arms ADD COLUMN power_time_seconds REAL;
ALTER TABLE arms ADD COLUMN power_energy_joules REAL;
ALTER TABLE arms ADD COLUMN power_steps INTEGER;
ALTER TABLE arms ADD COLUMN profiling INTEGER;  -- number of the trial that profiles, for as long as it runs
