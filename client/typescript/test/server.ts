/** The real server, in a process of its own on a free loopback port, with what it is asked for. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import type { JobOptions, JobSpec, TrialId } from "../src/index.js";

const ROOT = resolve(import.meta.dirname, "../../../../..");
const PYTHON = join(ROOT, ".venv/bin/python");

export class Server {
  readonly folder = mkdtempSync(join(tmpdir(), "wattwise-"));
  address = "127.0.0.1:0";
  #process: ChildProcess | undefined;

  /** Starts it, a second time on the same port and file. */
  async start(...options: string[]): Promise<string> {
    const database = `sqlite:///${join(this.folder, "wattwise.db")}`;
    const command = ["-m", "wattwise_server", "--address", this.address, "--database", database, ...options];
    this.#process = spawn(PYTHON, command, { stdio: ["ignore", "pipe", "ignore"] });
    for await (const line of createInterface(this.#process.stdout!)) {
      this.address = /^wattwise listens on (\S+)$/.exec(line)?.[1] ?? this.address;
      return this.address;
    }
    throw new Error("the server did not start");
  }

  /** Ends it as a power cut would. */
  async kill(): Promise<void> {
    if (this.#process?.exitCode === null && this.#process.signalCode === null) {
      this.#process.kill("SIGKILL");
      await once(this.#process, "exit");
    }
  }

  /** Leaves nothing behind. */
  async close(): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true });
  }

  /** A file of its folder. */
  file(name: string): string {
    return join(this.folder, name);
  }

  /** Runs Python in the repository. */
  python(code: string, ...values: string[]): string {
    return execFileSync(PYTHON, ["-c", code, ...values], { cwd: ROOT, encoding: "utf8" }).trim();
  }

  /** A token of a role in the file `server.tokens`. */
  token(role: string): string {
    const command = ["token", "create", "--tokens", this.file("server.tokens"), "--role", role, "--prefix", "test-"];
    return execFileSync(join(ROOT, ".venv/bin/wattwise"), command, { encoding: "utf8", stdio: "pipe" }).trim();
  }

  /** An authority `ca.pem` and certificates of it: `server.crt` (for hosts, if any are given), `client.crt` and their keys. */
  certificates(...hosts: string[]): void {
    const code = `import sys, pathlib; from tests.credentials import Authority
ca = Authority(pathlib.Path(sys.argv[1])); ca.issue("server", *sys.argv[2:]); ca.issue("client"); Authority(pathlib.Path(sys.argv[1]), "other")`;
    this.python(code, this.folder, ...hosts);
  }
}

let jobs = 0;

/** A job with an id of its own, whose cost is its energy. */
export function job(given: Partial<JobSpec> = {}): JobOptions & { jobId: string } {
  return {
    jobIdPrefix: "test-",
    batchSizes: [8, 16, 32, 64],
    defaultBatchSize: 16,
    etaKnob: 1,
    targetMetric: 0.9,
    maxEpochs: 10,
    gpu: { maxPowerWatts: 100, numberOfGpus: 1, gpuModel: "Test GPU" },
    ...given,
    jobId: `test-${process.pid}-${jobs++}`,
  };
}

/** What an epoch measured; its cost is `cost`. */
export function epoch(number: number, cost: number, metric: number) {
  return { currentEpoch: number, timeSeconds: number, energyJoules: cost, metric };
}

/** An id that no trial has. */
export function ghost(jobId: string): TrialId {
  return { jobId, batchSize: 16, trialNumber: 9 };
}
