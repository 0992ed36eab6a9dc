-- Those that are forgotten after a year are found with every deletion.
CREATE INDEX deletions_by_time ON deletions (delete_time);
CREATE INDEX deleted_trials_by_time ON deleted_trials (delete_time);
