// The session of a trial: reports, heartbeats, and stops that the server pushes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "wattwise.hpp"

namespace wattwise {

// A launch's trial while it trains. A thread of the session renews the lease by heartbeats, receives pushed stops and
// sends the report that could not be delivered. Thread-safe.
class TrialSession {
 public:
  // Registers the job and requests a trial. The client must outlive the session.
  TrialSession(Client& client, const v1::JobSpec& spec);
  // Ends the trial with END_REASON_ERROR unless it has ended before.
  ~TrialSession();
  TrialSession(const TrialSession&) = delete;
  TrialSession& operator=(const TrialSession&) = delete;

  // The batch size to train with, and one sentence that explains the choice.
  int batch_size() const { return trial_.id().batch_size(); }
  const std::string& reason() const { return reason_; }
  // Whether training must stop; set in the middle of an epoch, too.
  bool stopped() const;
  // Reports the epoch that just ended, counted from 1, with the sums of seconds and joules since the first epoch, and
  // returns the decision. The monitor says what measured the energy; leave it empty if that is unknown. After a stop, the
  // call returns the decision to stop and sends nothing.
  //
  // While the server is away, the session keeps the newest report and sends it when the server is back; the call throws an
  // Error that is server_away(): continue training. At the target or after the last epoch, it returns a decision to stop
  // even without the server.
  v1::Decision report(int epoch, double seconds, double joules, double metric, const v1::Monitor& monitor = {});
  // Ends the heartbeats, delivers an undelivered report, and ends the trial unless a decision has ended it. A second call
  // does nothing.
  void end(v1::EndReason reason);

 private:
  void keep_alive(std::chrono::duration<double> interval);
  bool send_heartbeat();
  void listen(std::chrono::duration<double> interval);
  v1::Decision deliver(const v1::TrainingResult& result);
  void apply(const v1::Decision& decision);
  void stop_thread();
  void settle(const v1::TrainingResult& result, const std::optional<Error>& outage);
  std::optional<v1::TrainingResult> undelivered() const;

  Client& client_;
  v1::JobSpec spec_;
  v1::Trial trial_;
  std::string reason_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // The decision to stop.
  std::optional<v1::Decision> decision_;
  // The newest report that could not be delivered, and why.
  std::optional<v1::TrainingResult> undelivered_;
  std::optional<Error> outage_;
  bool woken_ = false;
  bool closed_ = false;
  // The open stream, so that another thread can cancel it.
  grpc::ClientContext* stream_ = nullptr;
  std::mutex ending_;
  bool end_called_ = false;
  std::thread thread_;
};

}  // namespace wattwise
