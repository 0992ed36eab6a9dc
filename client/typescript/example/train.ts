/**
 * A launch of a recurring training job, with simulated epochs:
 *
 *     build/example [ADDRESS [SECONDS PER EPOCH [SECONDS OF LEASE]]]
 *
 * Trains until a model reaches its target, at most five times, also without a server. Exits with 0 if one did, and with 3
 * if none did.
 */

import { setTimeout as sleep } from "node:timers/promises";
import {
  Direction,
  Client,
  type Decision,
  EndReason,
  type EpochReport,
  EnergyQuality,
  Monitor,
  ServerUnavailableError,
  type TrialSession,
} from "../src/index.js";

const MAX_TRIES = 5;
/** Also trains if the server cannot be reached or no batch size is left to try. */
const DEFAULT_BATCH_SIZE = 32;

const [address = "localhost:50051", pace = "0", lease = "300"] = process.argv.slice(2);
/** What measures the energy: here it is estimated. */
const MONITOR = Monitor.fromPartial({ kinds: ["estimate"], quality: EnergyQuality.ENERGY_QUALITY_ESTIMATED });

const interrupted = new AbortController();
process.once("SIGTERM", () => interrupted.abort());
process.once("SIGINT", () => interrupted.abort());
process.once("SIGHUP", () => interrupted.abort());

try {
  process.exitCode = await launch(new Client(address));
} catch (error) {
  console.error((error as Error).message);
  process.exitCode = 1;
}

async function launch(client: Client): Promise<number> {
  try {
    const job = {
      jobId: "pretend-nightly",
      jobIdPrefix: "pretend",
      batchSizes: [16, 32, 64, 128],
      defaultBatchSize: DEFAULT_BATCH_SIZE,
      target: { value: 0.9, direction: Direction.DIRECTION_HIGHER_IS_BETTER },
      trialLeaseSeconds: Number(lease),
      gpus: [{ gpuModel: "Simulated GPU", count: 1, maxPowerWattsPerGpu: 300 }],
    };
    const options = { maxTries: MAX_TRIES, fallback: DEFAULT_BATCH_SIZE, timeoutMs: 10_000 };
    for await (const trial of client.attempts(job, options)) {
      console.log(`trial ${trial.id.trialNumber} trains with batch size ${trial.batchSize}`);
      const decision = await train(trial);
      if (decision === undefined) {
        await trial.end(EndReason.END_REASON_PREEMPTED).catch(() => {});
        return 1;
      }
      console.log(decision.message);
      if (decision.targetReached) {
        return 0;
      }
    }
    return 3;
  } finally {
    client.close();
  }
}

/** Trains until the decision to stop; returns undefined if SIGTERM, SIGHUP or Ctrl-C interrupts it. */
async function train(trial: TrialSession): Promise<Decision | undefined> {
  let [timeSeconds, energyJoules] = [0, 0];
  for (let epoch = 1; ; epoch++) {
    await sleep(Number(pace) * 1000, undefined, {
      signal: AbortSignal.any([trial.stopped, interrupted.signal]),
    }).catch(() => {});
    if (interrupted.signal.aborted) {
      return undefined;
    }
    const [metric, seconds, joules] = simulateEpoch(trial.batchSize, epoch);
    [timeSeconds, energyJoules] = [timeSeconds + seconds, energyJoules + joules];
    const decision = await report(trial, { epoch, timeSeconds, energyJoules, metric, monitor: MONITOR });
    if (decision?.stopTrain) {
      return decision;
    }
  }
}

/** Reports an epoch. Training continues while the server is away. */
async function report(trial: TrialSession, epoch: EpochReport): Promise<Decision | undefined> {
  try {
    return await trial.report(epoch);
  } catch (error) {
    if (!(error instanceof ServerUnavailableError)) {
      throw error;
    }
    console.error(`training continues without the server: ${error.message}`);
    return undefined;
  }
}

/** Simulates an epoch: large batches are fast and learn little, and every epoch draws 250 W. */
function simulateEpoch(batchSize: number, epoch: number): [number, number, number] {
  const seconds = 20 + 2000 / batchSize;
  return [1 - Math.exp((-epoch * 4) / Math.sqrt(batchSize)), seconds, 250 * seconds];
}
