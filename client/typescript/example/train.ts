/**
 * A launch of a recurring training job, with simulated epochs:
 *
 *     build/example [ADDRESS [SECONDS PER EPOCH [SECONDS OF LEASE]]]
 *
 * Exits with 0 if the model reached its target, and with 3 if the server stopped the trial before that.
 */

import { setTimeout as sleep } from "node:timers/promises";
import {
  Client,
  type Decision,
  EndReason,
  type EpochReport,
  Monitor,
  ServerUnavailableError,
  type TrialSession,
} from "../src/index.js";

const [address = "localhost:50051", pace = "0", lease = "300"] = process.argv.slice(2);
/** What measures the energy: here it is estimated. */
const MONITOR = Monitor.fromPartial({ kinds: ["estimate"], estimated: true });

const interrupted = new AbortController();
process.once("SIGTERM", () => interrupted.abort());
process.once("SIGINT", () => interrupted.abort());

try {
  process.exitCode = await launch(new Client(address));
} catch (error) {
  console.error((error as Error).message);
  process.exitCode = 1;
}

async function launch(client: Client): Promise<number> {
  try {
    const trial = await client.launch({
      jobIdPrefix: "pretend",
      jobId: "pretend-nightly",
      batchSizes: [16, 32, 64, 128],
      defaultBatchSize: 32,
      targetMetric: 0.9,
      trialLeaseSeconds: Number(lease),
      gpu: { maxPowerWatts: 300, numberOfGpus: 1, gpuModel: "Simulated GPU" },
    });
    console.log(`trial ${trial.id.trialNumber} trains with batch size ${trial.batchSize}`);
    return await train(trial);
  } finally {
    client.close();
  }
}

async function train(trial: TrialSession): Promise<number> {
  // The reason if training ends without a decision of the server.
  let reason: EndReason.END_REASON_ERROR | EndReason.END_REASON_PREEMPTED | EndReason.END_REASON_COMPLETED;
  reason = EndReason.END_REASON_ERROR;
  try {
    let [timeSeconds, energyJoules] = [0, 0];
    for (let currentEpoch = 1; ; currentEpoch++) {
      await sleep(Number(pace) * 1000, undefined, {
        signal: AbortSignal.any([trial.stopped, interrupted.signal]),
      }).catch(() => {});
      if (interrupted.signal.aborted) {
        reason = EndReason.END_REASON_PREEMPTED;
        return 1;
      }
      const [metric, seconds, joules] = simulateEpoch(trial.batchSize, currentEpoch);
      [timeSeconds, energyJoules] = [timeSeconds + seconds, energyJoules + joules];
      const decision = await report(trial, { currentEpoch, timeSeconds, energyJoules, metric, monitor: MONITOR });
      if (decision?.stopTrain) {
        console.log(decision.message);
        reason = EndReason.END_REASON_COMPLETED;
        return decision.targetReached ? 0 : 3;
      }
    }
  } finally {
    await trial.end(reason).catch(() => {});
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
