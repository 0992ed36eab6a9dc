// The servers of a client: one, or several on one database.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "wattwise/v1/batch_size_optimizer.grpc.pb.h"
#include "wattwise/v1/job_control.grpc.pb.h"
#include "wattwise/v1/job_reader.grpc.pb.h"
#include "wattwise/v1/server_info.grpc.pb.h"

namespace wattwise {

// The targets of gRPC in host:port, a list host:port,host:port, ipv4:a:port,b:port, ipv6:[a]:port,[b]:port, or
// dns:///name:port. Throws std::invalid_argument if the address is malformed, which would otherwise look like a server
// that is away.
std::vector<std::string> parse_address(const std::string& address);

// A server, or a name of several.
struct Server {
  std::string target;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::BatchSizeOptimizer::Stub> trainer;
  std::unique_ptr<v1::JobReader::Stub> reader;
  std::unique_ptr<v1::JobControl::Stub> control;
  std::unique_ptr<v1::ServerInfo::Stub> info;
};

// The servers in an order drawn at random. Each has a channel of its own, which connects when it is used: gRPC's lists of
// addresses take no names, verify every certificate by the first address, and many releases do not shuffle them.
// Thread-safe.
class Servers {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Servers(std::vector<Server> servers);

  // The server to use now.
  const Server& current(Clock::time_point now = Clock::now());
  // Uses the next server, unless another call has moved already.
  void move_from(const Server& server, Clock::time_point now = Clock::now());
  // Waits, and lets the attempts to connect make progress: many releases of gRPC read from a connection only while a call,
  // or this, waits for its channel.
  void wait(std::chrono::milliseconds pause) const;
  // A try of a call found no server; returns whether it is the first since the last answer.
  bool begin_outage();
  void end_outage();

 private:
  std::vector<Server> servers_;
  std::mutex mutex_;
  std::size_t current_ = 0;
  Clock::time_point moved_at_;
  bool away_ = false;
};

}  // namespace wattwise
