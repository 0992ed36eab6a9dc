/** The client's calls: deadlines, retries, typed errors. */

import assert from "node:assert/strict";
import { createServer, type Socket } from "node:net";
import { after, before, test } from "node:test";
import { Metadata, status } from "@grpc/grpc-js";
import { retrying } from "../src/backoff.js";
import { fromServiceError } from "../src/errors.js";
import {
  Client,
  ConfigurationError,
  DeadlineError,
  EndReason,
  ErrorReason,
  InvalidJobSpecError,
  InvalidRequestError,
  InvalidResultError,
  Direction,
  JobDiffersError,
  JobNotFoundError,
  PolicySpec,
  Measurement,
  NoBatchSizeLeftError,
  ServerUnavailableError,
  TrialNotFoundError,
  TrialId,
  TrialStatus,
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

test("a job is created once and then confirmed, with all defaults filled in", async () => {
  const spec = job();
  assert.equal((await client.registerJob(spec)).created, true);
  const { created, job: known } = await client.registerJob(spec);
  assert.equal(created, false);
  assert.deepEqual(known?.spec?.earlyStopping?.rule, { $case: "costBound", value: { betaKnob: 2 } });
});

test("a 64-bit seed is returned exactly", async () => {
  const seed = 9_007_199_254_740_993n;
  const policy = PolicySpec.fromPartial({ policy: { $case: "gts", value: { seed } } });
  const found = (await client.registerJob(job({ policy }))).job?.spec?.policy?.policy;
  assert(found?.$case === "gts");
  assert.equal(found.value.seed, seed);
});

test("an unknown name in a report is refused before anything is sent", async () => {
  const trial = await client.launch(job());
  const misspelt = { epoch: 1, timeSeconds: 9, energyJoule: 20, metric: 0.5 };
  await assert.rejects(trial.report(misspelt as never), (error) => {
    assert(error instanceof InvalidResultError);
    assert.deepEqual(
      error.violations.map(({ field }) => field),
      ["result.measurement.energyJoule"],
    );
    return true;
  });
  assert.equal((await client.getTrial(trial.id)).trial?.newest, undefined);
  await trial.end(EndReason.END_REASON_ERROR);
});

test("the server says what it is, and what the caller may do", async () => {
  const info = await client.getServerInfo();
  assert.match(info.version, /^\d+\./);
  assert.equal(info.factors?.pue, 1);
});

test("a missing number is refused before anything is sent, and NaN is a metric", async () => {
  const trial = await client.launch(job({ target: { value: 0.9, direction: Direction.DIRECTION_LOWER_IS_BETTER } }));
  const numbers = { epoch: 1, timeSeconds: 9, energyJoules: 20, metric: 5 };
  for (const name of ["epoch", "timeSeconds", "energyJoules", "metric"] as const) {
    const { [name]: _, ...others } = numbers;
    // Energy that was not measured is left out.
    const left = name === "energyJoules" ? [] : [others, { ...numbers, [name]: undefined }];
    for (const wrong of [...left, { ...numbers, [name]: null }, { ...numbers, [name]: "1" }]) {
      const report = wrong as unknown as typeof numbers;
      const measurements = [Measurement.fromPartial(numbers), wrong as unknown as Measurement];
      const ofResult = [InvalidResultError, ErrorReason.ERROR_REASON_INVALID_RESULT] as const;
      const ofRequest = [InvalidRequestError, ErrorReason.ERROR_REASON_INVALID_REQUEST] as const;
      for (const [call, [type, reason]] of [
        [() => trial.report(report), ofResult],
        [() => client.reportResult({ trial: trial.id, measurement: report }), ofResult],
        [() => client.importTrial({ jobId: trial.id.jobId, launchId: "r", batchSize: 16, measurements }), ofRequest],
      ] as const) {
        await assert.rejects(call, (error) => {
          assert(error instanceof type);
          assert.equal(error.reason, reason);
          assert.equal(error.callId, "");
          return true;
        });
      }
    }
  }
  assert.equal((await trial.report({ ...numbers, metric: Number.NaN })).targetReached, false);
  assert.equal((await all(client.listMeasurements(trial.id))).length, 1);
  await trial.end(EndReason.END_REASON_COMPLETED);
});

test("an invalid job is refused with its reason and the field of every fault", async () => {
  await assert.rejects(client.registerJob(job({ batchSizes: [], etaKnob: 2 })), (error) => {
    assert(error instanceof InvalidJobSpecError);
    assert.equal(error.reason, ErrorReason.ERROR_REASON_INVALID_JOB_SPEC);
    assert.equal(error.status, "INVALID_ARGUMENT");
    const fields = error.violations.map((violation) => violation.field);
    assert(fields.includes("job.eta_knob") && fields.includes("job.batch_sizes"), String(fields));
    assert.equal(error.retryable, false);
    return true;
  });
});

test("a job that differs is refused with the differing fields and the id of the call", async () => {
  const spec = job();
  await client.registerJob(spec);
  const named = new Client(server.address, { callId: "nightly-7" });
  await assert.rejects(named.registerJob({ ...spec, maxEpochs: 11 }), (error) => {
    assert(error instanceof JobDiffersError);
    assert.deepEqual(error.violations, [{ field: "job.max_epochs", description: "registered 10, requested 11" }]);
    assert.equal(error.callId, "nightly-7");
    return true;
  });
  named.close();
});

test("unknown jobs and unknown trials have their own error classes", async () => {
  const spec = job();
  await assert.rejects(client.getJob(spec.jobId), JobNotFoundError);
  await client.registerJob(spec);
  await assert.rejects(client.heartbeat(ghost(spec.jobId)), TrialNotFoundError);
});

test("a job without a batch size that converges has its own error class", async () => {
  const spec = job({ batchSizes: [16], policy: oneRound() });
  const trial = await client.launch(spec);
  assert.equal((await trial.report(epoch(10, 10, 0.1))).converged, false);
  await assert.rejects(client.getNextBatchSize(spec.jobId), NoBatchSizeLeftError);
});

test("the same launch id returns the same trial, another one another trial", async () => {
  const spec = job();
  await client.registerJob(spec);
  const first = await client.getNextBatchSize(spec.jobId, { launchId: "launch-1" });
  assert.deepEqual((await client.getNextBatchSize(spec.jobId, { launchId: "launch-1" })).trial?.id, first.trial?.id);
  assert.equal((await client.getNextBatchSize(spec.jobId)).trial?.id?.trialNumber, 2);
});

test("lists iterate over all pages, and a trial has its measurements", async () => {
  const spec = job();
  await client.registerJob(spec);
  for (let launch = 0; launch < 3; launch++) {
    await client.getNextBatchSize(spec.jobId, { launchId: `launch-${launch}` });
  }
  const numbers: number[] = [];
  for await (const trial of client.listTrials(spec.jobId, { pageSize: 2 })) {
    numbers.push(trial.id?.trialNumber ?? 0);
  }
  assert.deepEqual(numbers, [1, 2, 3]);
  const trial = TrialId.fromPartial({ jobId: spec.jobId, launchId: "launch-0" });
  await client.reportResult({ trial, measurement: epoch(1, 10, 0.5) });
  assert.equal((await all(client.listMeasurements(trial)))[0]?.energyJoules, 10);
  await client.endTrial(trial, EndReason.END_REASON_ERROR);
  assert.equal((await client.getTrial(trial)).trial?.status, TrialStatus.TRIAL_STATUS_FAILED);
});

test("a job that is missing is not deleted, however often it is registered", async () => {
  const missing = job().jobId;
  await assert.rejects(client.deleteJob(missing), JobNotFoundError);
  assert.equal((await client.deleteJob(missing, { allowMissing: true })).job, undefined);
});

test("a watch yields every change and ends when the job is deleted", async () => {
  const spec = job();
  await client.registerJob(spec);
  const watch = client.watchJob(spec.jobId);
  assert.equal((await watch.next()).value?.job?.numTrials, 0);
  await client.getNextBatchSize(spec.jobId);
  assert.equal((await watch.next()).value?.job?.numTrials, 1);
  await client.deleteJob(spec.jobId);
  await assert.rejects(watch.next(), JobNotFoundError);
});

test("a watch goes on when the server closes the connection because of its age, without a warning", async () => {
  const aging = new Server();
  await aging.start("--max-connection-age-seconds", "0.1", "--grace-seconds", "0");
  const client = new Client(aging.address);
  const warnings: string[] = [];
  const note = (warning: Error): void => void warnings.push(warning.message);
  process.on("warning", note);
  const spec = job();
  await client.registerJob(spec);
  let states = 0;
  for await (const state of client.watchJob(spec.jobId)) {
    assert.equal(state.job?.spec?.jobId, spec.jobId);
    if (++states === 4) {
      break;
    }
  }
  client.close();
  await aging.close();
  process.off("warning", note);
  assert.deepEqual(warnings, []);
});

test("a call is retried until the server is up", async () => {
  const late = new Server();
  late.address = `127.0.0.1:${await freePort()}`;
  const early = new Client(late.address);
  const registered = early.registerJob(job());
  await late.start();
  assert.equal((await registered).created, true);
  early.close();
  await late.close();
});

test("a step of the system clock does not end the retries", async (context) => {
  context.mock.timers.enable({ apis: ["Date"], now: Date.now() });
  let attempts = 0;
  const attempt = (): Promise<string> => {
    attempts += 1;
    if (attempts > 1) {
      return Promise.resolve("answer");
    }
    context.mock.timers.setTime(Date.now() + 3_600_000);
    return Promise.reject(new ServerUnavailableError("away", { status: "UNAVAILABLE" }));
  };
  assert.equal(await retrying(attempt, performance.now() + 20_000), "answer");
});

test("an unreachable server is an error with its address: after the timeout, or at once without retries", async () => {
  const address = `127.0.0.1:${await freePort()}`;
  for (const options of [{ timeoutMs: 300 }, { retry: false }]) {
    const lost = new Client(address, options);
    await assert.rejects(lost.getJob("x"), (error) => {
      assert(error instanceof ServerUnavailableError);
      assert(!(error instanceof DeadlineError), "the error should be the cause, not the timeout");
      return error.message.includes(address);
    });
    lost.close();
  }
});

test("a server that never answers takes no longer than the timeout", async () => {
  const sockets: Socket[] = [];
  const silent = createServer((socket) => sockets.push(socket)).listen(0, "127.0.0.1");
  await new Promise((listening) => silent.once("listening", listening));
  const { port } = silent.address() as { port: number };
  const waiting = new Client(`127.0.0.1:${port}`);
  await assert.rejects(waiting.getJob("x", { timeoutMs: 200 }), ServerUnavailableError);
  waiting.close();
  sockets.forEach((socket) => socket.destroy());
  silent.close();
});

test("a malformed address is refused before the first call", () => {
  for (const address of ["localhost", "http://localhost:50051", "localhost:0", "localhost:99999", ""]) {
    assert.throws(() => new Client(address), ConfigurationError, address);
  }
});

async function freePort(): Promise<number> {
  const holder = createServer().listen(0, "127.0.0.1");
  await new Promise((listening) => holder.once("listening", listening));
  const { port } = holder.address() as { port: number };
  await new Promise((closed) => holder.close(closed));
  return port;
}

// How grpc-js reports a connection that ends depends on the moment, which no test can choose.
test("a connection that ended during a call is an unavailable server", () => {
  for (const details of [
    "Received RST_STREAM with code 2 triggered by internal client error: write EPIPE",
    "Received RST_STREAM with code 2 (Internal server error)",
    "Received RST_STREAM with code 0 (Call ended without gRPC status)",
  ]) {
    const error = Object.assign(new Error(details), { code: status.INTERNAL, details, metadata: new Metadata() });
    const failure = fromServiceError(error, "a:1");
    assert(failure instanceof ServerUnavailableError);
    assert.equal(failure.status, "UNAVAILABLE");
    assert(failure.retryable);
  }
  const details = "Received RST_STREAM with code 7";
  const error = Object.assign(new Error(details), { code: status.INTERNAL, details, metadata: new Metadata() });
  assert.equal(fromServiceError(error, "a:1").status, "INTERNAL");
});
