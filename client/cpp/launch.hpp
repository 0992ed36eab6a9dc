// One launch of a training: its trial is reported, kept and ended.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "wattwise.hpp"

namespace wattwise {

// One trial of a job while it trains: it is reported, its lease is kept by heartbeats, and it is ended. A thread of its
// own does the talking between the reports. May be used from any thread.
class Launch {
 public:
  // Registers the job and asks for this launch's trial. The client has to outlive it.
  Launch(Client& client, const v1::JobSpec& spec);
  // Ends the trial as crashed unless it was decided or ended before.
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // What to train with, and one sentence why.
  int batch_size() const { return trial_.id().batch_size(); }
  const std::string& reason() const { return reason_; }
  // Whether the server has said that the trial is over, be it in mid-epoch.
  bool stopped() const;
  // Reports the epoch that just ended, counted from 1. Seconds and joules are sums since the first epoch. Once the trial
  // is over, the answer is the decision that ended it.
  //
  // While the server is away the newest report is kept, to be sent when it is back, and an Error is thrown that is
  // server_away(): train on. At the target or the last epoch the answer is to stop even so.
  v1::Decision report(int epoch, double seconds, double joules, double metric);
  // Delivers a report that is kept, ends the trial unless it is decided, and ends the heartbeats. Called again, it does
  // nothing.
  void end(v1::EndReason reason);

 private:
  void talk(std::chrono::duration<double> every);
  bool beat();
  void listen(std::chrono::duration<double> every);
  v1::Decision deliver(const v1::TrainingResult& result);
  void heard(const v1::Decision& decision);
  void silence();
  void settle(const v1::TrainingResult& result, const std::optional<Error>& away);
  std::optional<v1::TrainingResult> kept() const;

  Client& client_;
  v1::JobSpec spec_;
  v1::Trial trial_;
  std::string reason_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<v1::Decision> decision_;
  // The newest report that the server has not answered, and why.
  std::optional<v1::TrainingResult> pending_;
  std::optional<Error> away_;
  bool woken_ = false;
  bool ended_ = false;
  // The stream that is open, so that it can be given up.
  grpc::ClientContext* stream_ = nullptr;
  std::mutex ending_;
  bool told_ = false;
  std::thread talking_;
};

}  // namespace wattwise
