/** One StreamResults call: sends reports and heartbeats, receives decisions. */

import type { ClientDuplexStream, ServiceError } from "@grpc/grpc-js";
import { fromServiceError, ServerError, type WattwiseError } from "./errors.js";
import type { StreamResultsRequest, StreamResultsResponse } from "./stubs/wattwise/v1/batch_size_optimizer.js";
import type { Decision, TrainingResult, TrialId } from "./stubs/wattwise/v1/trial.js";

/** A trial's open stream. It buffers decisions for one reader. */
export class ResultStream implements AsyncIterable<Decision> {
  readonly #call: ClientDuplexStream<StreamResultsRequest, StreamResultsResponse>;
  readonly #decisions: Decision[] = [];
  #ended = false;
  #failure: WattwiseError | undefined;
  #wake: () => void = () => {};

  /** Use `Client.streamResults`. */
  constructor(call: ClientDuplexStream<StreamResultsRequest, StreamResultsResponse>, address: string) {
    this.#call = call;
    // Events, because the call's iterator misses an error that occurs before it is read.
    call.on("data", ({ decision }: StreamResultsResponse) => {
      this.#decisions.push(present(decision, "decision"));
      this.#wake();
    });
    call.on("error", (error: ServiceError) => {
      this.#failure = fromServiceError(error, address);
    });
    // Emitted after all data and after an error.
    call.on("end", () => {
      this.#ended = true;
      this.#wake();
    });
  }

  /** Sends the report of an epoch, which is answered by a decision. Does nothing if the stream has ended. */
  report(result: TrainingResult): void {
    this.#send({ event: { $case: "result", value: result } });
  }

  /** Renews the trial's lease. There is no answer. */
  heartbeat(trial: TrialId): void {
    this.#send({ event: { $case: "heartbeat", value: { trial } } });
  }

  /**
   * Waits for the next decision: the answer to a report, or a stop that the server pushed.
   *
   * @returns undefined once the server has ended the stream.
   * @throws WattwiseError if the stream ended with an error.
   */
  async next(): Promise<Decision | undefined> {
    while (this.#decisions.length === 0 && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    const decision = this.#decisions.shift();
    if (decision === undefined && this.#failure !== undefined) {
      throw this.#failure;
    }
    return decision;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Decision> {
    for (let decision = await this.next(); decision !== undefined; decision = await this.next()) {
      yield decision;
    }
  }

  /** Closes the sending side: the server answers what it has received and ends the stream. */
  close(): void {
    this.#call.end();
  }

  /** Cancels the call. */
  cancel(): void {
    this.#call.cancel();
  }

  #send(request: StreamResultsRequest): void {
    if (!this.#ended && this.#call.writable) {
      this.#call.write(request);
    }
  }
}

/** Returns a part of a response that every Wattwise server sets. */
export function present<T>(part: T | undefined, name: string): T {
  if (part === undefined) {
    throw new ServerError(`the response has no ${name}: check that the address is that of a Wattwise server`);
  }
  return part;
}
