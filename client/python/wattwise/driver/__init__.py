"""`wattwise run`: launches a training command repeatedly, with the batch sizes that the server chooses.

A run's way through the modules:

    command         arguments of `wattwise run`; exit statuses
    jobfile         job.toml to frozen values, with every fault at once (toml_table, placeholders)
    preflight       checks of the program, the monitor and the job before the first launch; the dry run
    own_server      a server for this run, where --server names none
    loop            launch after launch until every recurrence has reached the target
    launching       one launch: request a trial, train it, report its result, end it, record it
    launch_context  what the command receives: arguments and environment variables
    execution       one execution of the command: measured, its lease renewed, stopped when the server says so
    process         the command as a process group (supervisor) that does not outlive the driver
    evaluations     metrics and epochs in the command's output
    outcome         files in a trial's folder: result.json, client.json, measured.json
    folder          the run's folder: which launch is next, and which driver has it (files)
    history         history.jsonl, one line per trial
    output          the live table, and the summary at the end
    interruption    Ctrl-C, SIGTERM and SIGHUP
"""
