// The session of a trial: reports, heartbeats, and stops that the server pushes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "state.hpp"
#include "wattwise.hpp"

namespace wattwise {

// A launch's trial while it trains. A thread of the session renews the lease by heartbeats, receives pushed stops and
// sends the report that could not be delivered. Thread-safe.
class TrialSession {
 public:
  // Registers the job, unless it is registered already, and requests a trial. The client must outlive the session.
  //
  // With a fallback, one of the job's batch sizes, it always trains: if the server cannot be reached or no batch size is
  // left to try, the session trains with the fallback, stops at its own target or last epoch, and end() imports the trial.
  TrialSession(Client& client, const v1::JobSpec& spec, int fallback = 0, bool registered = false);
  // Ends the trial with END_REASON_ERROR unless end() was called before.
  ~TrialSession();
  TrialSession(const TrialSession&) = delete;
  TrialSession& operator=(const TrialSession&) = delete;

  // The batch size to train with, and one sentence that explains the choice.
  int batch_size() const { return trial_.batch_size(); }
  const std::string& reason() const { return reason_; }
  // Whether training must stop; set in the middle of an epoch, too.
  bool stopped() const;
  // The decision to stop: the server's, or the session's own while the server is away; nullopt before it.
  std::optional<v1::Decision> decision() const;
  // Whether it trains without the server, which does not know the trial. end() then imports it.
  bool alone() const;
  // Reports the epoch that just ended, counted from 1, with the sums of seconds and joules since the first epoch, and
  // returns the decision. Without joules, no energy was measured. The monitor says what measured the energy; leave it empty
  // if that is unknown. After a stop, the call returns the decision to stop and sends nothing.
  //
  // While the server is away, the session keeps the newest report and sends it when the server is back; the call throws an
  // Error that is server_away(): continue training. At the target or after the last epoch, it returns a decision to stop
  // even without the server. If the server does not know the trial, such as after the loss of its database, the session
  // warns once and decides alone from then on.
  v1::Decision report(int epoch, double seconds, std::optional<double> joules, double metric,
                      const v1::Monitor& monitor = {});
  // How the trial was ended; unspecified before end().
  v1::EndReason end_reason() const;
  // Ends the heartbeats, delivers an undelivered report, and ends the trial unless a decision has ended it. A trial that
  // the server does not know is imported with all its measurements. If end() throws an Error that is server_away(),
  // import_request() has what could not be delivered. A second call delivers that with the first reason, and changes
  // nothing once the server knows how the trial ended.
  void end(v1::EndReason reason);
  // The trial with all its measurements, for Client::import_trial. Store it if the server is still away when training
  // ends, and send it later, after Client::register_job.
  v1::ImportTrialRequest import_request(v1::EndReason reason) const;

 private:
  void keep_alive();
  bool send_heartbeat();
  bool listen();
  void request_trial(int fallback, bool registered);
  std::optional<v1::Decision> deliver(const v1::TrainingResult& result);
  bool stop_if_deleted(const Error& error);
  bool forget_if_unknown(const Error& error);
  void train_alone(const std::string& warning);
  void keep(const v1::TrainingResult& result);
  void apply(const v1::Decision& decision);
  void note(Event event);
  TrialState state() const;
  void keep_undelivered(const v1::TrainingResult& result, const std::optional<Error>& outage);
  std::optional<v1::TrainingResult> undelivered() const;

  Client& client_;
  // The job as the trainer named it, and with the server's defaults.
  v1::JobSpec job_;
  v1::JobSpec spec_;
  std::string launch_id_ = new_id();
  google::protobuf::Timestamp start_;
  v1::Trial trial_;
  std::string reason_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // The decision to stop: the server's, or this session's own if it trains alone.
  std::optional<v1::Decision> decision_;
  // The session's own decision to stop during an outage.
  std::optional<v1::Decision> interim_;
  TrialState state_;
  std::vector<v1::Measurement> measurements_;
  v1::Monitor monitor_;
  std::set<int> warned_;
  // The newest report that could not be delivered, and why.
  std::optional<v1::TrainingResult> undelivered_;
  std::optional<Error> outage_;
  // The time between heartbeats, as the server's newest answer says.
  std::chrono::duration<double> interval_{};
  bool woken_ = false;
  // The open stream, so that another thread can cancel it.
  grpc::ClientContext* stream_ = nullptr;
  // The reason of the first end(). The thread ends once it is set.
  std::optional<v1::EndReason> ended_;
  // Held while end() runs: a second call waits for the first one.
  std::mutex ending_;
  std::thread thread_;
};

// Trains one trial after another, at most max_tries, until one reaches its target; returns whether one did.
//
// `train` gets the session of each trial, and the number of the attempt from 0 on, for its seed. It returns when training
// has stopped; then the trial is ended. No further trial follows an exception, a training that returns before the decision
// to stop, or the deletion of the job; but one follows if `train` has ended its trial with END_REASON_OUT_OF_MEMORY. The
// fallback is that of TrialSession; 0: none.
bool attempts(Client& client, const v1::JobSpec& spec, int max_tries, int fallback,
              const std::function<void(TrialSession&, int attempt)>& train);

}  // namespace wattwise
