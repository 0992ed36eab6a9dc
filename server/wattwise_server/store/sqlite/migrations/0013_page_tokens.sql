-- Keys that belong to the database.
CREATE TABLE secrets (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
);
INSERT INTO secrets VALUES ('page tokens', randomblob(32));
