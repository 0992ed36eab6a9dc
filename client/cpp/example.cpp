// One launch of a recurring training job, with epochs that only pretend to train:
//
//     example [ADDRESS [SECONDS PER EPOCH [SECONDS OF LEASE]]]
//
// Exits with 0 when the model reached its target and with 3 when the server stopped the trial without it.
#include <cmath>
#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "launch.hpp"

namespace v1 = wattwise::v1;

namespace {

volatile std::sig_atomic_t interrupted = 0;

struct Epoch {
  double metric;
  double seconds;
  double joules;
};

// Pretends: large batches are quick and learn little; every epoch draws 250 W.
Epoch train_epoch(int batch_size, int epoch) {
  const double seconds = 20 + 2000.0 / batch_size;
  return {1 - std::exp(-epoch * 4 / std::sqrt(batch_size)), seconds, 250 * seconds};
}

v1::JobSpec job(double lease) {
  v1::JobSpec spec;
  spec.set_job_id("pretend-nightly");
  spec.set_job_id_prefix("pretend");
  for (const int size : {16, 32, 64, 128}) spec.add_batch_sizes(size);
  spec.set_default_batch_size(32);
  spec.set_target_metric(0.9);
  spec.set_trial_lease_seconds(lease);
  spec.mutable_gpu()->set_max_power_watts(300);
  spec.mutable_gpu()->set_number_of_gpus(1);
  spec.mutable_gpu()->set_gpu_model("Pretended GPU");
  return spec;
}

void pass(std::chrono::duration<double> time, const wattwise::Launch& launch) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end && !launch.stopped() && !interrupted) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

int train(const std::string& address, std::chrono::duration<double> pace, double lease) {
  wattwise::Client client(address, wattwise::Credentials::from_env());
  wattwise::Launch launch(client, job(lease));
  std::cout << launch.reason() << '\n';
  double seconds = 0;
  double joules = 0;
  for (int epoch = 1;; ++epoch) {
    pass(pace, launch);
    if (interrupted) break;
    const Epoch done = train_epoch(launch.batch_size(), epoch);
    seconds += done.seconds;
    joules += done.joules;
    try {
      const v1::Decision decision = launch.report(epoch, seconds, joules, done.metric);
      if (!decision.stop_train()) continue;
      std::cout << decision.message() << '\n';
      return decision.target_reached() ? 0 : 3;
    } catch (const wattwise::Error& error) {
      if (!error.server_away()) throw;
      std::cerr << "training goes on without the server: " << error.what() << '\n';
    }
  }
  launch.end(v1::END_REASON_PREEMPTED);
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  const auto interrupt = [](int) { interrupted = 1; };
  std::signal(SIGINT, interrupt);
  std::signal(SIGTERM, interrupt);
  try {
    const std::vector<std::string> given(arguments + 1, arguments + count);
    const std::string address = given.empty() ? "localhost:50051" : given[0];
    const double pace = given.size() > 1 ? std::stod(given[1]) : 0;
    return train(address, std::chrono::duration<double>(pace), given.size() > 2 ? std::stod(given[2]) : 300);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
