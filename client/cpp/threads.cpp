// Uses one client and one session from many threads: threads ADDRESS
//
// Exits with 0 if every answer is as expected.
#include <atomic>
#include <iostream>
#include <thread>
#include <vector>

#include "session.hpp"

namespace v1 = wattwise::v1;

namespace {

constexpr int kThreads = 8;
constexpr int kEpochs = 200;

v1::JobSpec job() {
  v1::JobSpec spec;
  spec.set_job_id("threads-" + wattwise::new_id());
  spec.set_job_id_prefix("threads");
  spec.add_batch_sizes(16);
  spec.set_default_batch_size(16);
  spec.mutable_target()->set_value(0.9);
  spec.mutable_target()->set_direction(v1::DIRECTION_HIGHER_IS_BETTER);
  spec.set_max_epochs(kEpochs);
  auto& gpu = *spec.add_gpus();
  gpu.set_gpu_model("Some GPU");
  gpu.set_count(1);
  gpu.set_max_power_watts_per_gpu(300);
  return spec;
}

template <class Work>
void in_threads(Work work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(work);
  for (auto& thread : threads) thread.join();
}

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// Every thread requests a trial of one job through one client: the numbers have no gaps and no repeats.
void share_client(wattwise::Client& client) {
  const v1::JobSpec spec = job();
  std::atomic<int> sum{0};
  in_threads([&] {
    client.register_job(spec);
    const auto trial = client.get_next_batch_size(spec.job_id()).trial();
    sum += trial.id().trial_number();
    client.heartbeat(trial.id());
    client.end_trial(trial.id(), v1::END_REASON_PREEMPTED);
  });
  require(sum == kThreads * (kThreads + 1) / 2, "the trial numbers have gaps or repeats");
}

// One thread reports, the others wait for the stop, and all of them end the session.
void share_session(wattwise::Client& client) {
  wattwise::TrialSession session(client, job());
  std::atomic<bool> training{false};
  std::atomic<bool> stopped{false};
  in_threads([&] {
    if (!training.exchange(true)) {
      for (int epoch = 1; epoch <= kEpochs; ++epoch) stopped = session.report(epoch, epoch, epoch, 0.5).stop_train();
    }
    while (!session.stopped()) std::this_thread::yield();
    session.end(v1::END_REASON_COMPLETED);
  });
  require(stopped, "the last epoch did not stop the training");
}

// A session that trains without the server is shared in the same way, and imported once.
void share_fallback(wattwise::Client& client) {
  const v1::JobSpec spec = job();
  client.register_job(spec);
  v1::ImportTrialRequest crash;
  crash.set_job_id(spec.job_id());
  crash.set_launch_id(wattwise::new_id());
  crash.set_batch_size(16);
  crash.set_end_reason(v1::END_REASON_OUT_OF_MEMORY);
  client.import_trial(crash);
  std::atomic<int> warnings{0};
  client.warn = [&](const std::string&) { ++warnings; };
  wattwise::TrialSession session(client, spec, 16);
  std::atomic<bool> training{false};
  in_threads([&] {
    if (!training.exchange(true)) {
      for (int epoch = 1; epoch <= kEpochs; ++epoch) session.report(epoch, epoch, epoch, 0.5);
    }
    while (!session.stopped()) std::this_thread::yield();
    session.end(v1::END_REASON_COMPLETED);
  });
  require(warnings == 1, "the fallback was not warned of once");
  require(client.get_job(spec.job_id()).job().num_trials() == 2, "the fallback was not imported once");
}

}  // namespace

int main(int count, char** arguments) {
  try {
    wattwise::Client client(count > 1 ? arguments[1] : "localhost:50051");
    share_client(client);
    share_session(client);
    share_fallback(client);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
