// One client and one launch in the hands of many threads, against a server: threads ADDRESS
//
// Exits with 0 if every call was answered as it should be.
#include <atomic>
#include <iostream>
#include <thread>
#include <vector>

#include "launch.hpp"

namespace v1 = wattwise::v1;

namespace {

constexpr int kThreads = 8;
constexpr int kEpochs = 200;

v1::JobSpec job() {
  v1::JobSpec spec;
  spec.set_job_id("threads-" + wattwise::new_request_id());
  spec.set_job_id_prefix("threads");
  spec.add_batch_sizes(16);
  spec.set_default_batch_size(16);
  spec.set_target_metric(0.9);
  spec.set_max_epochs(kEpochs);
  spec.mutable_gpu()->set_max_power_watts(300);
  spec.mutable_gpu()->set_number_of_gpus(1);
  spec.mutable_gpu()->set_gpu_model("Some GPU");
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

// Every thread takes trials of one job through one client: no number comes twice, none is missing.
void share_client(wattwise::Client& client) {
  const v1::JobSpec spec = job();
  std::atomic<int> sum{0};
  in_threads([&] {
    client.register_job(spec);
    const auto trial = client.next_batch_size(spec.job_id()).trial();
    sum += trial.id().trial_number();
    client.heartbeat(trial.id());
    client.end_trial(trial.id(), v1::END_REASON_PREEMPTED);
  });
  require(sum == kThreads * (kThreads + 1) / 2, "the trials were not numbered without gaps");
}

// One thread reports, as a training does; the others look, and all of them end it.
void share_launch(wattwise::Client& client) {
  wattwise::Launch launch(client, job());
  std::atomic<bool> training{false};
  std::atomic<bool> told{false};
  in_threads([&] {
    if (!training.exchange(true)) {
      for (int epoch = 1; epoch <= kEpochs; ++epoch) told = launch.report(epoch, epoch, epoch, 0.5).stop_train();
    }
    while (!launch.stopped()) std::this_thread::yield();
    launch.end(v1::END_REASON_COMPLETED);
  });
  require(told, "the last epoch did not stop the training");
}

}  // namespace

int main(int count, char** arguments) {
  try {
    wattwise::Client client(count > 1 ? arguments[1] : "localhost:50051");
    share_client(client);
    share_launch(client);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
