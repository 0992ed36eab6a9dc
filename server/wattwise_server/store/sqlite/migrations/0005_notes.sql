-- What a policy remembers of a job beyond the columns that all policies share.
ALTER TABLE jobs ADD COLUMN notes TEXT NOT NULL DEFAULT '';
