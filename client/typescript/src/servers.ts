/** The servers of a client: one, or several on one database. */

import { randomInt } from "node:crypto";
import { isIPv4, isIPv6 } from "node:net";
import { type ChannelOptions, experimental } from "@grpc/grpc-js";
import { type Credentials, isThisMachine } from "./credentials.js";
import { ConfigurationError } from "./errors.js";
import { BatchSizeOptimizerClient } from "./stubs/wattwise/v1/batch_size_optimizer.js";
import { JobControlClient } from "./stubs/wattwise/v1/job_control.js";
import { JobReaderClient } from "./stubs/wattwise/v1/job_reader.js";
import { ServerInfoClient } from "./stubs/wattwise/v1/server_info.js";

const CHANNEL = {
  // Reconnects within seconds, however long the server was away.
  "grpc.initial_reconnect_backoff_ms": 200,
  "grpc.max_reconnect_backoff_ms": 2_000,
};
/** Detects a server that no longer answers within 40 seconds, and sooner if there is another one. */
const PINGS = { "grpc.keepalive_time_ms": 30_000, "grpc.keepalive_timeout_ms": 10_000 };
const FREQUENT_PINGS = { "grpc.keepalive_time_ms": 10_000, "grpc.keepalive_timeout_ms": 3_000 };
/** After this time a client that has moved tries the first of its servers again, so that a rollout does not leave one idle. */
const RETURN_MS = 30 * 60_000;

/** Resolves a name as `dns:` does, to its addresses in a random order. */
const SHUFFLED_DNS = "wattwise-dns";

/**
 * pick_first has the option `shuffleAddressList` for this, but in grpc-js 1.14 it never exchanges the first two addresses.
 */
class ShuffledDns {
  readonly #resolver: experimental.Resolver;

  constructor(target: experimental.GrpcUri, listener: experimental.ResolverListener, options: ChannelOptions) {
    const shuffling: experimental.ResolverListener = (found, ...rest) =>
      listener(found.ok ? { ok: true, value: shuffled(found.value) } : found, ...rest);
    this.#resolver = experimental.createResolver({ ...target, scheme: "dns" }, shuffling, options);
  }

  static getDefaultAuthority({ path }: experimental.GrpcUri): string {
    return path;
  }

  updateResolution(): void {
    this.#resolver.updateResolution();
  }

  destroy(): void {
    this.#resolver.destroy();
  }
}

experimental.registerResolver(SHUFFLED_DNS, ShuffledDns);

function shuffled<T>(list: readonly T[]): T[] {
  const order: T[] = [];
  for (const one of list) {
    order.splice(randomInt(order.length + 1), 0, one);
  }
  return order;
}

/** A server, or a name of several, with its stubs, which share a channel. */
export interface Link {
  readonly target: string;
  readonly trainer: BatchSizeOptimizerClient;
  readonly reader: JobReaderClient;
  readonly control: JobControlClient;
  readonly info: ServerInfoClient;
}

/**
 * The servers in an order drawn at random. Each has a channel of its own, which connects when it is used: gRPC's lists of
 * addresses take no names, and verify every certificate by the first address.
 */
export class Servers {
  readonly #links: Link[];
  readonly #open: (target: string) => Link;
  #current = 0;
  #movedAt = 0;

  /** @throws ConfigurationError if the address, the token or a certificate is invalid. */
  constructor(address: string, credentials: Credentials) {
    const targets = parseAddress(address);
    this.#open = (target) => {
      const settings = {
        ...CHANNEL,
        ...(targets.length > 1 || target.startsWith("dns:") ? FREQUENT_PINGS : PINGS),
        // A proxy cannot reach this machine's loopback interface, and must not receive a token for it.
        ...(isThisMachine(target) ? { "grpc.enable_http_proxy": 0 } : {}),
      };
      const secure = credentials.channel(target);
      const resolved = target.replace(/^dns:/, `${SHUFFLED_DNS}:`);
      const trainer = new BatchSizeOptimizerClient(resolved, secure, settings);
      const shared = { channelOverride: trainer.getChannel() };
      const reader = new JobReaderClient(resolved, secure, shared);
      const control = new JobControlClient(resolved, secure, shared);
      const info = new ServerInfoClient(resolved, secure, shared);
      return { target, trainer, reader, control, info };
    };
    this.#links = shuffled(targets.map(this.#open));
  }

  get several(): boolean {
    return this.#links.length > 1;
  }

  /** The server to use now. */
  current(): Link {
    if (this.#current > 0 && performance.now() - this.#movedAt > RETURN_MS) {
      this.#current = 0;
    }
    return this.#links[this.#current]!;
  }

  /**
   * Uses the next server, unless another call has moved already.
   *
   * @param answered - Whether the server itself said that it is unavailable: gRPC leaves a server of a name only if it
   * cannot connect to it, so that this needs a new connection, to an address drawn at random.
   */
  moveFrom(link: Link, answered = false): void {
    if (this.#links[this.#current] !== link) {
      return;
    }
    if (answered && link.target.startsWith("dns:")) {
      this.#links[this.#current] = this.#open(link.target);
      link.trainer.close();
    }
    this.#current = (this.#current + 1) % this.#links.length;
    this.#movedAt = performance.now();
  }

  close(): void {
    for (const { trainer } of this.#links) {
      trainer.close();
    }
  }
}

/**
 * The targets of gRPC in host:port, a list host:port,host:port, ipv4:a:port,b:port, ipv6:[a]:port,[b]:port, or
 * dns:///name:port.
 *
 * @throws ConfigurationError if the address is malformed, which would otherwise look like a server that is away.
 */
export function parseAddress(address: string): string[] {
  if (/^unix(-abstract)?:/.test(address)) {
    return [address];
  }
  const dns = /^dns:(?:\/\/[^/]*\/)?(.*)$/s.exec(address);
  if (dns) {
    check(address, dns[1]!, () => true, "is not host:port");
    return [address];
  }
  const scheme = /^ipv[46]:/.exec(address)?.[0] ?? "";
  const isOf = { "ipv4:": isIPv4, "ipv6:": isIPv6 }[scheme] ?? (() => true);
  const servers = address.slice(scheme.length).split(",");
  for (const server of servers) {
    check(address, server, isOf, scheme ? `is not an ${scheme.slice(0, 4)} address with a port` : "is not host:port");
  }
  return servers.map((server) => scheme + server);
}

function check(address: string, server: string, isHost: (host: string) => boolean, fault: string): void {
  const found = /^(?:\[([^\][\s/]+)\]|([^\][:,/\s]+)):(\d{1,5})$/.exec(server);
  const port = Number(found?.[3]);
  const host = found?.[1] ?? found?.[2] ?? "";
  if (!(port > 0 && port < 65536) || !isHost(host) || (found?.[1] !== undefined && !isIPv6(host))) {
    throw new ConfigurationError(
      `invalid server address '${address}': '${server}' ${fault}; write host:port, such as localhost:50051, a list ` +
        "host1:50051,host2:50051, or dns:///name:50051, without http://",
    );
  }
}
