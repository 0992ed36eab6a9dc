-- min_reader_version: 1
ALTER TABLE jobs ADD COLUMN best_known bigint;               -- NULL: no batch size has converged
ALTER TABLE jobs ADD COLUMN best_known_cost double precision; -- expected, in joules
ALTER TABLE jobs ADD COLUMN baseline_every bigint;              -- NULL, from servers before this: none
UPDATE jobs SET best_known = min_cost_batch_size, best_known_cost = min_cost;

-- save_1 lists the columns of a job where it inserts one, twice, and where it updates one.
DO $$
DECLARE
    definition text := pg_get_functiondef('save_1'::regproc);
BEGIN
    definition := replace(
        definition, 'pinned, baseline_requested, warnings',
        'pinned, baseline_requested, warnings, best_known, best_known_cost, baseline_every'
    );
    definition := replace(
        definition, 'warnings = n.warnings
            WHERE j.job_key', 'warnings = n.warnings, best_known = n.best_known, best_known_cost = n.best_known_cost,
                baseline_every = coalesce(n.baseline_every, j.baseline_every)
            WHERE j.job_key'
    );
    EXECUTE definition;
END
$$;
