// A launch of a recurring training job, with simulated epochs:
//
//     example [ADDRESS [SECONDS PER EPOCH [SECONDS OF LEASE]]]
//
// Trains until a model reaches its target, at most five times, also without a server. Exits with 0 if one did, and with 3
// if none did.
#include <cmath>
#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "session.hpp"

namespace v1 = wattwise::v1;

namespace {

constexpr int kMaxTries = 5;
// Also trains if the server cannot be reached or no batch size is left to try.
constexpr int kDefaultBatchSize = 32;

volatile std::sig_atomic_t interrupted = 0;

struct Epoch {
  double metric;
  double seconds;
  double joules;
};

// Large batches are fast and learn little, and every epoch draws 250 W.
Epoch simulate_epoch(int batch_size, int epoch) {
  const double seconds = 20 + 2000.0 / batch_size;
  return {1 - std::exp(-epoch * 4 / std::sqrt(batch_size)), seconds, 250 * seconds};
}

v1::JobSpec job(double lease) {
  v1::JobSpec spec;
  spec.set_job_id("pretend-nightly");
  spec.set_job_id_prefix("pretend");
  for (const int size : {16, 32, 64, 128}) spec.add_batch_sizes(size);
  spec.set_default_batch_size(kDefaultBatchSize);
  spec.mutable_target()->set_value(0.9);
  spec.mutable_target()->set_direction(v1::DIRECTION_HIGHER_IS_BETTER);
  spec.set_trial_lease_seconds(lease);
  auto& gpu = *spec.add_gpus();
  gpu.set_gpu_model("Simulated GPU");
  gpu.set_count(1);
  gpu.set_max_power_watts_per_gpu(300);
  return spec;
}

void wait(std::chrono::duration<double> time, const wattwise::TrialSession& session) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end && !session.stopped() && !interrupted) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Trains until the decision to stop, or until SIGTERM, SIGHUP or Ctrl-C, which ends the trial as preempted.
void train(wattwise::TrialSession& session, std::chrono::duration<double> pace) {
  std::cout << "Batch size " << session.batch_size() << ": " << session.reason() << '\n';
  v1::Monitor monitor;
  monitor.add_kinds("estimate");
  monitor.set_quality(v1::ENERGY_QUALITY_ESTIMATED);
  double seconds = 0;
  double joules = 0;
  for (int epoch = 1;; ++epoch) {
    wait(pace, session);
    if (interrupted) break;
    const Epoch done = simulate_epoch(session.batch_size(), epoch);
    seconds += done.seconds;
    joules += done.joules;
    try {
      const v1::Decision decision = session.report(epoch, seconds, joules, done.metric, monitor);
      if (!decision.stop_train()) continue;
      std::cout << decision.message() << '\n';
      return;
    } catch (const wattwise::Error& error) {
      if (!error.server_away()) throw;
      std::cerr << "training continues without the server: " << error.what() << '\n';
    }
  }
  session.end(v1::END_REASON_PREEMPTED);
}

int launch(const std::string& address, std::chrono::duration<double> pace, double lease) {
  wattwise::Client client(address, wattwise::Credentials::from_env());
  client.timeout = std::chrono::seconds(10);
  const bool reached = wattwise::attempts(client, job(lease), kMaxTries, kDefaultBatchSize,
                                          [&](wattwise::TrialSession& session, int) { train(session, pace); });
  if (interrupted) return 1;
  return reached ? 0 : 3;
}

}  // namespace

int main(int count, char** arguments) {
  const auto interrupt = [](int) { interrupted = 1; };
  std::signal(SIGINT, interrupt);
  std::signal(SIGTERM, interrupt);
  std::signal(SIGHUP, interrupt);
  try {
    const std::vector<std::string> args(arguments + 1, arguments + count);
    const std::string address = args.empty() ? "localhost:50051" : args[0];
    const double pace = args.size() > 1 ? std::stod(args[1]) : 0;
    return launch(address, std::chrono::duration<double>(pace), args.size() > 2 ? std::stod(args[2]) : 300);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
