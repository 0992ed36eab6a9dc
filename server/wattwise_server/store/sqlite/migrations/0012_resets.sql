-- When a search was reset; which trials were imported without their start; whose profile a known power limit is.
ALTER TABLE jobs ADD COLUMN reset_time INTEGER;                         -- NULL: never, or by an older version
ALTER TABLE trials ADD COLUMN start_known INTEGER NOT NULL DEFAULT 1;   -- 0: `start_time` says nothing
ALTER TABLE trials ADD COLUMN profile TEXT NOT NULL DEFAULT '';         -- JSON: [cheapest sample, highest sample]

-- Jobs from before version 9: what prior jobs told is in the notes of their search, which nothing has changed since.
UPDATE jobs SET first_notes = json_set(
    notes,
    '$.hint', NULL, '$.trials', 0, '$.total', 0.0, '$.insuring', json('[]'), '$.insured', 0.0, '$.delivered', 0,
    '$.retry', NULL, '$.window', json('[]'),
    '$.evidence', (SELECT json_group_array(json('[0,0.0,0.0,0,0.0,0.0,0,0.0,1.0]')) FROM json_each(notes, '$.evidence'))
)
WHERE first_notes = '' AND changed_policy IS NULL AND policy = 'knowledge_gradient' AND notes != ''
  AND json_array_length(notes, '$.prior') > 0;
