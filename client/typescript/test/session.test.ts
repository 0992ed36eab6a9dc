/** A trial's session: decisions, pushed stops, heartbeats, outages. */

import assert from "node:assert/strict";
import { once } from "node:events";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  Client,
  ConfigurationError,
  Decision,
  EndReason,
  ImportTrialRequest,
  InvalidResultError,
  NoBatchSizeLeftError,
  PolicySpec,
  Trial,
  TrialNotFoundError,
  TrialStatus,
  TrialOrigin,
  type TrialCalls,
  TrialSession,
  WarningReason,
} from "../src/index.js";
import { all, epoch, ghost, job, oneRound, Server } from "./server.js";

const server = new Server();
let client: Client;

before(async () => {
  client = new Client(await server.start());
});

after(async () => {
  client.close();
  await server.close();
});

async function statusOf(trial: TrialSession): Promise<TrialStatus | undefined> {
  return (await client.getTrial(trial.id)).trial?.status;
}

/** A trial of batch size 8, and one of 16, which is the best known batch size once it has reached the target. */
async function explorationAndConcurrent(
  of: Client,
  spec: ReturnType<typeof job>,
): Promise<[TrialSession, TrialSession]> {
  const first = await of.launch(spec);
  await first.report(epoch(1, 100, 0.95));
  const [slow, fast] = [await of.launch(spec), await of.launch(spec)];
  assert.deepEqual([slow.batchSize, fast.batchSize], [8, 16]);
  return [slow, fast];
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  for (const deadline = Date.now() + 20_000; !(await condition()); await sleep(20)) {
    assert(Date.now() < deadline, "timeout");
  }
}

test("reports are answered in order, and a stop is final", async () => {
  const trial = await client.launch(job());
  assert.equal(trial.batchSize, 16);
  const [first, second] = await Promise.all([trial.report(epoch(1, 10, 0.5)), trial.report(epoch(2, 20, 0.95))]);
  assert.deepEqual([first.cost, first.stopTrain, second.cost, second.stopTrain], [10, false, 20, true]);
  assert.equal(trial.stopped.aborted, true);
  assert.equal((await trial.report(epoch(3, 30, 0.1))).cost, 20);
});

test("a stop is pushed in the middle of an epoch, with its decision", async () => {
  const [slow, fast] = await explorationAndConcurrent(client, job());
  await slow.report(epoch(1, 50, 0.5));
  const stopped = once(slow.stopped, "abort");
  await fast.report(epoch(1, 20, 0.95));
  await stopped;
  assert.match((slow.stopped.reason as Decision).message, /cost bound exceeded/);
  assert.equal(slow.decision?.costBound, 40);
});

test("invalid numbers are refused, and training continues", async () => {
  const trial = await client.launch(job());
  await trial.report(epoch(2, 20, 0.5));
  await assert.rejects(trial.report(epoch(1, 10, 0.5)), InvalidResultError);
  assert.equal((await trial.report(epoch(3, 30, 0.95))).converged, true);
});

test("heartbeats renew the lease, and a closed session sends none", async () => {
  const spec = job({ trialLeaseSeconds: 1 });
  const [open, closed] = [await client.launch(spec), await client.launch(spec)];
  closed.close();
  await until(async () => (await statusOf(closed)) === TrialStatus.TRIAL_STATUS_INTERRUPTED);
  const begun = (await client.getTrial(open.id)).trial!;
  await until(async () => (await client.getTrial(open.id)).trial!.leaseExpireTime! > begun.leaseExpireTime!);
  assert.equal(await statusOf(open), TrialStatus.TRIAL_STATUS_RUNNING);
  await open.end(EndReason.END_REASON_COMPLETED);
});

test("a trial ended by its trainer has the trainer's reason", async () => {
  for (const reason of [EndReason.END_REASON_OUT_OF_MEMORY, EndReason.END_REASON_STOPPED_EARLY] as const) {
    const trial = await client.launch(job());
    await trial.report(epoch(1, 10, 0.5));
    const ended = await trial.end(reason);
    assert.equal(ended?.endReason, reason);
  }
});

test("a later end delivers the reason of the first one", async () => {
  const own = new Server();
  const later = new Client(await own.start());
  const trial = await later.launch(job(), { timeoutMs: 500 });
  await own.kill();
  await assert.rejects(trial.end(EndReason.END_REASON_OUT_OF_MEMORY));
  await own.start();
  await until(() =>
    trial.end(EndReason.END_REASON_COMPLETED).then(
      () => true,
      () => false,
    ),
  );
  assert.equal((await later.getTrial(trial.id)).trial?.endReason, EndReason.END_REASON_OUT_OF_MEMORY);
  later.close();
  await own.close();
});

test("a report of an unknown trial is an error if the session does not know its job", async () => {
  const spec = job();
  await client.registerJob(spec);
  const trial = client.openSession(Trial.fromPartial({ id: ghost(spec.jobId), batchSize: 16 }));
  await assert.rejects(trial.report(epoch(1, 10, 0.5)), TrialNotFoundError);
  trial.close();
});

test("a report and pushed stops survive a crash and restart of the server", async () => {
  const [slow, fast] = await explorationAndConcurrent(client, job({ trialLeaseSeconds: 1 }));
  await slow.report(epoch(1, 50, 0.5));
  await server.kill();
  const answer = slow.report(epoch(2, 60, 0.5));
  await server.start();
  assert.equal((await answer).cost, 60);
  const stopped = once(slow.stopped, "abort");
  await fast.report(epoch(1, 20, 0.95));
  await stopped;
});

test("a session without a stream uses unary calls", async () => {
  const few = new Server();
  const busy = new Client(await few.start("--max-streams", "1"));
  const [second, first] = await explorationAndConcurrent(busy, job({ trialLeaseSeconds: 1 }));
  assert.equal((await first.report(epoch(1, 10, 0.5))).cost, 10);
  assert.equal((await second.report(epoch(1, 50, 0.5))).cost, 50);
  // It does not report: the stop comes by a heartbeat, or by the stream that has become free.
  const stopped = once(second.stopped, "abort");
  await first.report(epoch(2, 20, 0.95));
  await stopped;
  busy.close();
  await few.close();
});

test("a warning of the server is shown once per trial", async () => {
  const shown = warnings();
  const trial = await client.launch(job());
  await trial.report(epoch(1, 0, 0.5));
  await trial.report(epoch(2, 0, 0.6));
  await trial.end(EndReason.END_REASON_COMPLETED);
  assert.equal(shown().filter((message) => message.includes("energy")).length, 1);
});

test("warnings whose reason is newer than this client are shown, each once", async () => {
  const shown = warnings();
  const [one, other] = ["first", "second"].map((message) => ({ reason: WarningReason.UNRECOGNIZED, message }));
  const answer = async (): Promise<Decision> => Decision.fromPartial({ message: "go on", warnings: [one!, other!] });
  const calls = { reportResult: answer } as unknown as TrialCalls;
  const trial = new TrialSession(
    calls,
    Trial.fromPartial({ id: { ...ghost("test"), trialNumber: 0 }, batchSize: 16 }),
    1000,
  );
  await trial.report(epoch(1, 10, 0.5));
  await trial.report(epoch(2, 20, 0.5));
  trial.close();
  await sleep(0);
  assert.deepEqual(shown(), ["first", "second"]);
});

test("a training continues on a server that does not know its trial, and is imported at its end", async () => {
  const [lost, restored] = [new Server(), new Server()];
  const unaware = new Client(await lost.start());
  const shown = warnings();
  const spec = job();
  const trial = await unaware.launch(spec);
  assert.equal((await trial.report(epoch(1, 10, 0.5))).cost, 10);
  await lost.kill();
  restored.address = lost.address;
  await restored.start();
  const decision = await trial.report(epoch(2, 20, 0.6));
  assert.deepEqual([decision.stopTrain, trial.alone], [false, true]);
  const last = await trial.report(epoch(3, 30, 0.95));
  assert.deepEqual([last.stopTrain, last.targetReached, trial.stopped.aborted], [true, true, true]);
  const imported = await trial.end(EndReason.END_REASON_COMPLETED);
  assert.equal(imported?.origin, TrialOrigin.TRIAL_ORIGIN_IMPORTED);
  assert.deepEqual([imported?.endReason, imported?.newest?.epoch], [EndReason.END_REASON_TARGET_REACHED, 3]);
  assert.equal((await all(unaware.listMeasurements(imported!.id!))).length, 3);
  assert.equal(shown().filter((message) => message.includes("does not know the trial")).length, 1);
  unaware.close();
  await lost.close();
  await restored.close();
});

test("a trial whose job is deleted, before its decision or after, is not imported", async () => {
  for (const metric of [0.5, 0.95]) {
    const spec = job();
    const trial = await client.launch(spec);
    await trial.report(epoch(1, 10, metric));
    trial.close();
    await client.deleteJob(spec.jobId);
    assert.equal(await trial.end(EndReason.END_REASON_COMPLETED), undefined);
    const before = metric > 0.9 ? EndReason.END_REASON_TARGET_REACHED : EndReason.END_REASON_JOB_DELETED;
    assert.deepEqual([trial.decision?.stopTrain, trial.decision?.endReason], [true, before]);
    assert.equal((await client.registerJob(spec)).created, true);
  }
});

test("a launch without anything left to try trains with its fallback, which is imported", async () => {
  const spec = job({ batchSizes: [8, 16], policy: oneRound() });
  for (const batchSize of [8, 16]) {
    await client.registerJob(spec);
    const crash = { jobId: spec.jobId, launchId: `crash-${batchSize}-${spec.jobId}`, batchSize };
    await client.importTrial({ ...crash, endReason: EndReason.END_REASON_OUT_OF_MEMORY });
  }
  await assert.rejects(client.launch(spec), NoBatchSizeLeftError);
  await assert.rejects(client.launch(spec, { fallback: 99 }), ConfigurationError);
  const trial = await client.launch(spec, { fallback: 8 });
  assert.deepEqual([trial.batchSize, trial.alone], [8, true]);
  assert.equal((await trial.report(epoch(1, 10, 0.5))).stopTrain, false);
  assert.equal((await trial.report(epoch(10, 20, 0.6))).targetReached, false);
  const imported = await trial.end(EndReason.END_REASON_COMPLETED);
  assert.deepEqual([imported?.endReason, imported?.batchSize], [EndReason.END_REASON_MAX_EPOCHS, 8]);
});

test("what an absent server missed can be stored as bytes and imported later, once", async () => {
  const away = new Server();
  const early = new Client(await away.start());
  await away.kill();
  const spec = job();
  const trial = await early.launch(spec, { fallback: 16, timeoutMs: 500 });
  await trial.report(epoch(1, 10, 0.95));
  await assert.rejects(trial.end(EndReason.END_REASON_COMPLETED));
  const bytes = ImportTrialRequest.encode(trial.importRequest(EndReason.END_REASON_COMPLETED)).finish();
  await away.start();
  await early.registerJob(spec);
  const imports = [];
  for (let delivery = 0; delivery < 2; delivery++) {
    imports.push(await early.importTrial(ImportTrialRequest.decode(bytes)));
  }
  assert.deepEqual([imports[0]?.created, imports[1]?.created], [true, false]);
  assert.equal(imports[1]?.trial?.endReason, EndReason.END_REASON_TARGET_REACHED);
  early.close();
  await away.close();
});

test("attempts go on until a trial reaches its target, and after one that ran out of memory", async () => {
  const spec = job({ policy: PolicySpec.fromPartial({ policy: { $case: "gts", value: {} } }) });
  const metrics = [undefined, 0.1, 0.95, 0.95];
  const tried: TrialSession[] = [];
  for await (const trial of client.attempts(spec, { maxTries: 4 })) {
    const metric = metrics[tried.push(trial) - 1];
    if (metric === undefined) {
      await trial.end(EndReason.END_REASON_OUT_OF_MEMORY);
    } else {
      await trial.report(epoch(10, 10, metric));
    }
  }
  const reached = tried.map((trial) => trial.decision?.targetReached);
  assert.deepEqual(reached, [undefined, false, true]);
  assert.equal(tried[0]?.endReason, EndReason.END_REASON_OUT_OF_MEMORY);
});

test("attempts end at their number, and when the loop is left", async () => {
  const spec = job({ policy: PolicySpec.fromPartial({ policy: { $case: "gts", value: {} } }) });
  let attempts = 0;
  for await (const trial of client.attempts(spec, { maxTries: 2 })) {
    attempts += 1;
    await trial.report(epoch(10, 10, 0.1));
  }
  assert.equal(attempts, 2);
  for await (const _ of client.attempts(spec, { maxTries: 2 })) {
    break;
  }
  const ends: EndReason[] = [];
  for await (const { endReason } of client.listTrials(spec.jobId) as AsyncGenerator<Trial>) {
    ends.push(endReason);
  }
  const missed = EndReason.END_REASON_MAX_EPOCHS;
  assert.deepEqual(ends, [missed, missed, EndReason.END_REASON_ERROR]);
});

test("attempts of a deleted job end, and do not register it again", async () => {
  const spec = job();
  for await (const trial of client.attempts(spec, { maxTries: 3 })) {
    await client.deleteJob(spec.jobId);
    assert.equal((await trial.report(epoch(1, 10, 0.5))).stopTrain, true);
  }
  assert.equal((await client.registerJob(spec)).created, true);
});

/** Collects the warnings that are shown from now on. */
function warnings(): () => string[] {
  const shown: string[] = [];
  process.on("warning", ({ name, message }) => {
    if (name === "WattwiseWarning") {
      shown.push(message);
    }
  });
  return () => shown;
}
