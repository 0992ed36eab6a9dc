ALTER TABLE jobs ADD COLUMN best_known INTEGER;              -- NULL: no batch size has converged
ALTER TABLE jobs ADD COLUMN best_known_cost REAL;            -- expected, in joules
ALTER TABLE jobs ADD COLUMN baseline_every INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN reset_request_id TEXT NOT NULL DEFAULT '';     -- of the newest reset; empty: none
ALTER TABLE jobs ADD COLUMN baseline_request_id TEXT NOT NULL DEFAULT '';  -- of the newest request; empty: none
UPDATE jobs SET best_known = min_cost_batch_size, best_known_cost = min_cost;
